"""The two classes that TensorRT-LLM makes: each hands on to a half of ours.

Where the model or the way it is run is not supported they say so once, and TensorRT-LLM runs as if they were absent.
"""

from __future__ import annotations

import logging
from typing import Any

from semblend_core import (
    ProviderError,
    SemanticLookupProvider,
    Settings,
    create_provider,
    named_provider,
    open_audit,
    what_is_on,
)
from semblend_core.control import ControlServer, TenantCommands, open_control
from semblend_trtllm import compat, support
from semblend_trtllm.meeting import Meeting, meet
from semblend_trtllm.protocol import EngineRequest, LlmArguments, StepOutput
from semblend_trtllm.requests import Follower
from semblend_trtllm.scheduler import SchedulerSide
from semblend_trtllm.settings import TrtllmSettings
from semblend_trtllm.worker import WorkerHalf

logger = logging.getLogger(__name__)

_API = compat.connector_api()
_Scheduler: Any = _API.scheduler
_Worker: Any = _API.worker


class SemBlendConnectorScheduler(_Scheduler):  # type: ignore[misc]
    """On the first rank only."""

    def __init__(self, llm_args: LlmArguments) -> None:
        super().__init__(llm_args)
        self.side: SchedulerSide | None = None
        self._control: ControlServer | None = None
        self._meeting = meet(llm_args, "scheduler")
        self.unsupported, config = _why_off(llm_args)
        if self.unsupported:
            logger.error("SemBlend is off: %s", self.unsupported)
            return
        settings, own = Settings.from_env(), TrtllmSettings.from_env()
        geometry = support.geometry_of(llm_args, config, own)
        logger.info("%s", what_is_on(settings, f"TensorRT-LLM {_version()}"))
        missed = support.what_is_missed(llm_args)
        if missed is not None:
            logger.warning("%s", missed)
        audit = None if own.provider else open_audit(settings, "trtllm")
        self.side = side = SchedulerSide(
            _named(own.provider) if own.provider else create_provider(settings, engine="trtllm", audit=audit),
            settings,
            geometry.block_size,
            Follower(support.namespaces_of(llm_args, geometry), settings),
            self._meeting,
            lambda: _tokens_in(own.staging_bytes, self._meeting),
            audit,
        )
        self._meeting.hear, self._meeting.catch_up = side.hear, side.catch_up
        self._control = open_control(settings, "trtllm", TenantCommands(side.purge_tenant, side.show_tenant))

    def get_num_new_matched_tokens(self, request: EngineRequest, num_computed_tokens: int) -> tuple[int, bool]:
        """Loads run before the forward: no request ever waits for one."""
        return (0 if self.side is None else self.side.promise(request, num_computed_tokens)), False

    def update_state_after_alloc(self, request: EngineRequest, block_ids: list[int]) -> None:
        if self.side is not None:
            self.side.allocated(request, block_ids)

    def build_connector_meta(self, scheduler_output: StepOutput | None) -> object:
        return None if self.side is None else self.side.step(scheduler_output)

    def request_finished(self, request: EngineRequest, cache_block_ids: list[int]) -> bool:
        """Prompts are copied out in the step that completes them: the engine need not wait with its blocks."""
        if self.side is not None:
            self.side.finished(request)
        return False

    def wait_for_initialization(self) -> None:
        """1.3 and later."""

    def shutdown(self) -> None:
        if self._control is not None:
            self._control.close()
        if self.side is not None:
            self.side.close()


class SemBlendConnectorWorker(_Worker):  # type: ignore[misc]
    """On every rank; with more than one, SemBlend is off."""

    def __init__(self, llm_args: LlmArguments) -> None:
        super().__init__(llm_args)
        self._meeting = meet(llm_args, "worker")
        self.half: WorkerHalf | None = None
        unsupported, config = _why_off(llm_args)
        if unsupported is None:
            geometry = support.geometry_of(llm_args, config, TrtllmSettings.from_env())
            self.half = WorkerHalf(Settings.from_env(), geometry, config, self._meeting)

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        if self.half is not None:
            self.half.register(kv_cache_tensor)

    def bind_connector_meta(self, metadata: object) -> None:
        super().bind_connector_meta(metadata)
        if self.half is not None:
            self.half.bind(metadata)

    def start_load_kv(self, stream: Any) -> None:
        """Before the forward, on the stream that it waits for."""
        if self.half is not None:
            self.half.start()

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        """All layers are queued before the forward begins."""

    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        """All layers are captured together, after the forward."""

    def wait_for_save(self, stream: Any) -> None:
        if self.half is not None:
            self.half.save()

    def get_finished(
        self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        """Nothing is ever saved or loaded behind the engine's back, so what is asked for has ended."""
        self._meeting.catch_up()
        return finished_gen_req_ids, started_loading_req_ids

    def shutdown(self) -> None:
        if self.half is not None:
            self.half.close()


def _why_off(llm_args: LlmArguments) -> tuple[str | None, dict[str, Any]]:
    """Why SemBlend does nothing in this engine, and the model's configuration."""
    refused = compat.why_refused(_version(), TrtllmSettings.from_env().force_version)
    if refused:
        return refused, {}
    try:
        config = support.model_config(llm_args)
    except Exception as error:
        return f"the configuration of {llm_args.model} cannot be read: {error}", {}
    from semblend_core.kv import why_keys_do_not_move

    return support.why_unsupported(llm_args, config) or why_keys_do_not_move(config), config


def _version() -> str | None:
    import tensorrt_llm

    return getattr(tensorrt_llm, "__version__", None)


def _tokens_in(staging_bytes: int, meeting: Meeting) -> int:
    return 0 if meeting.worker is None else staging_bytes // meeting.worker.token_bytes


def _named(named: str) -> SemanticLookupProvider:
    variable = TrtllmSettings.variable("provider")
    provider = named_provider(variable, named)
    if not isinstance(provider, SemanticLookupProvider):
        raise ProviderError(
            f"{variable}={named!r} gave a {type(provider).__name__}, which only names other tokens: TensorRT-LLM finds "
            "KV by the tokens themselves. Implement SemanticLookupProvider"
        )
    return provider
