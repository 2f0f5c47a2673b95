"""``SemBlendConnectorV1``: vLLM's two halves of a connector, each handing on to ours."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from semblend_core import DeclineReason, ProviderStats, SelfTestResult, what_is_on
from semblend_core.control import ControlServer, TenantCommands, open_control
from semblend_core.kv import HeadShare, Rotation, StoreOptions, find_learned_shift
from semblend_core.serving import CostGate, QualityGuard, StepWork, WorkerNews, contain
from semblend_core.serving.worker import WorkerSide
from semblend_vllm import neighbour
from semblend_vllm.compat import kv_memory
from semblend_vllm.compat.adapters import tell_of_unloaded_adapters
from semblend_vllm.compat.announcements import ExactAnnouncements
from semblend_vllm.compat.log import join_engines_log
from semblend_vllm.compat.looking import show_queries
from semblend_vllm.compat.metrics import ReusePrometheus, ReuseStats
from semblend_vllm.compat.new_weights import tell_of_new_weights
from semblend_vllm.compat.resets import on_reset
from semblend_vllm.compat.row_tokens import write_own_tokens_only
from semblend_vllm.compat.scheduling import block_ids_in
from semblend_vllm.compat.shadow_blocks import ShadowBlocks
from semblend_vllm.compat.support import configure, replica_of, what_is_missed, why_not_inside_another, why_unsupported
from semblend_vllm.compat.timing import cost_identity
from semblend_vllm.compat.versions import installed_version, why_refused
from semblend_vllm.messages import VllmStepWork, VllmWorkerNews
from semblend_vllm.scheduler.providing import provider_of
from semblend_vllm.scheduler.requests import Follower, Served, identity_of_weights_in
from semblend_vllm.scheduler.side import SchedulerSide

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)


class SemBlendConnectorV1(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Set it with ``--kv-transfer-config`` and the scheduler with ``--scheduler-cls``: see the README.

    Where the model or the way it is run is not supported it says so once, and vLLM runs as if it were absent.
    """

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._config, self._manager = vllm_config, None
        join_engines_log()
        self.settings, self._own_settings = configure(vllm_config)
        self.scheduler_side: SchedulerSide | None = None
        self.worker_side: WorkerSide | None = None
        self._layers: dict[str, int] = {}
        self._refusal: WorkerNews | None = None
        """What is told where there is no worker side: why, and that nothing is captured."""
        self._told = ProviderStats()
        self._control: ControlServer | None = None
        self.unsupported = (
            why_refused(self._own_settings.force_version)
            or why_not_inside_another(self)
            or why_unsupported(vllm_config, kv_cache_config)
        )
        if self.unsupported:
            if role == KVConnectorRole.SCHEDULER:
                logger.error("SemBlend is off: %s", self.unsupported)
        elif role == KVConnectorRole.SCHEDULER:
            # A donor that is gone when it is needed must cost a prefill and not the request.
            vllm_config.kv_transfer_config.kv_load_failure_policy = "recompute"
            self.scheduler_side = side = self._new_scheduler_side(kv_memory.probe_layers(vllm_config, kv_cache_config))
            commands = TenantCommands(side.purge_tenant, side.show_tenant)
            self._control = open_control(self.settings, "scheduler", commands)

    def _new_scheduler_side(self, probe_layers: int | None) -> SchedulerSide:
        scheduler = self._config.scheduler_config
        provider, audit = provider_of(self.settings, self._own_settings)
        logger.info("%s", what_is_on(self.settings, f"vLLM {installed_version()}"))
        missed = what_is_missed(self._config)
        if missed is not None:
            logger.warning("%s", missed)
        guard: QualityGuard[Served] = QualityGuard(self.settings, audit)
        costs = CostGate(
            self.settings,
            scheduler.max_num_batched_tokens,
            cost_identity(self._config),
            audit,
            spending=guard.spending,
            step_rows=scheduler.max_num_seqs - 1,
        )
        follow = Follower(self._config, self.settings)
        tell_of_unloaded_adapters(follow)
        return SchedulerSide(
            provider,
            self.settings,
            self._config.cache_config.block_size,
            follow,
            costs,
            ranks=self._config.parallel_config.tensor_parallel_size,
            neighbour=neighbour.Neighbour(self._config.kv_transfer_config.engine_id),
            audit=audit,
            guard=guard,
            correcting=kv_memory.why_no_steps_between_layers(self._config) is None,
            probe_layers=probe_layers,
        )

    # --- The scheduler's half ------------------------------------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        side, known = self.scheduler_side, kv_cache_manager is self._manager
        self._manager = kv_cache_manager
        if side is None or known:
            return
        on_reset(kv_cache_manager, side.reset)
        if kv_cache_manager.block_pool.enable_kv_cache_events:
            ExactAnnouncements(kv_cache_manager.block_pool, side.first_approximate)
        if kv_cache_manager.enable_caching:
            side.lineages.holds = ShadowBlocks(kv_cache_manager, side.look, side.first_approximate).holds

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        side = self.scheduler_side
        return (0, False) if side is None else side.claim(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        if self.scheduler_side is not None:
            self.scheduler_side.allocated(request, list(blocks.get_block_ids()[0]), num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        work = VllmStepWork()
        if self.scheduler_side is not None:
            self.scheduler_side.put_into(
                work,
                scheduler_output.num_scheduled_tokens,
                lambda request_id: block_ids_in(scheduler_output, self._manager, request_id),
            )
        return work

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        news = connector_output.kv_connector_worker_meta
        if self.scheduler_side is not None and isinstance(news, WorkerNews):
            self.scheduler_side.hear(news)

    def get_kv_connector_stats(self) -> ReuseStats | None:
        """vLLM asks both halves; the counters are the scheduler's."""
        if self.scheduler_side is None:
            return None
        now = self.scheduler_side.provider.stats()
        stats, self._told = ReuseStats.between(self._told, now, self.scheduler_side.guard.news.take()), now
        return None if stats.is_empty() else stats

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> ReuseStats:
        return ReuseStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: VllmConfig, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> ReusePrometheus:
        return ReusePrometheus(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def has_pending_push_work(self) -> bool:
        """vLLM goes on stepping while this holds. What halves in two processes tell each other goes with a step."""
        return self.scheduler_side is not None and self.scheduler_side.expects_news

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        if self.scheduler_side is not None:
            self.scheduler_side.finished(request.request_id)
        return False, None

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, block_ids[0] if block_ids else [])

    # --- The worker's half ---------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        if self.unsupported or not kv_caches:
            return
        try:
            self.worker_side = self._new_worker_side(kv_caches)
        except Exception as error:
            # The other half goes on looking up: without a self-test nothing is ever loaded.
            logger.exception("SemBlend is off: this worker's KV cannot be moved")
            refused = SelfTestResult.refused(str(error) or type(error).__name__)
            self._refusal = WorkerNews(self_test={kv_memory.tensor_parallel_rank(): refused})
            return
        tell_of_new_weights(self.worker_side)
        self._layers = {name: number for number, name in enumerate(kv_memory.in_order(kv_caches))}
        if not kv_memory.holds_latents(self._config):
            contain("showing queries to probes", show_queries, self._config, self._layers, self.worker_side.look)
        neighbour.announce(self._config, self.worker_side)
        commands = TenantCommands(self.worker_side.purge, self.worker_side.held_by)
        self._control = open_control(self.settings, f"worker-{kv_memory.tensor_parallel_rank()}", commands)

    def _new_worker_side(self, kv_caches: dict[str, torch.Tensor]) -> WorkerSide:
        contain("writing the tokens of rows", write_own_tokens_only)
        parallel = self._config.parallel_config
        rank, ranks, replica = kv_memory.tensor_parallel_rank(), parallel.tensor_parallel_size, replica_of(parallel)
        text = self._config.model_config.hf_text_config
        rotations = Rotation.by_layer(text, len(kv_caches), text_only=True)
        memory = kv_memory.kv_memory(self._config, kv_caches, rotations)
        folder, weights = self.settings.corrections_dir, partial(identity_of_weights_in, self._config)
        memory.learned = find_learned_shift(folder, weights, memory.shape, memory.device, HeadShare(rank, ranks))
        options = StoreOptions.from_settings(self.settings, rank=rank, ranks=ranks, replica=replica)
        worker = WorkerSide(options, memory, rotations, rank)
        reason = kv_memory.why_no_correction(self._config, kv_caches, rotations)
        if reason is not None:
            worker.no_correction(reason)
        return worker

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        work = self._get_connector_metadata()
        if self.worker_side is not None and isinstance(work, StepWork):
            self.worker_side.load(work)

    def wait_for_layer_load(self, layer_name: str) -> None:
        # Loads are queued on the forward's own stream. But now this layer's KV is written, and nobody has read it.
        if self.worker_side is not None:
            layer = self._layers.get(layer_name)
            if layer is not None:  # Some layers have no KV of their own.
                self.worker_side.correct(layer)

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """All layers are captured together, after the forward."""

    def wait_for_save(self) -> None:
        work = self._get_connector_metadata()
        if not isinstance(work, StepWork):
            return
        if self.worker_side is not None:
            self.worker_side.capture(work)
        elif work.captures:
            self._refusal = self._refusal or WorkerNews()
            for capture in work.captures:
                self._refusal.lost[capture.name] = DeclineReason.CAPTURE_FAILED

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set() if self.worker_side is None else self.worker_side.take_invalid_blocks()

    def build_connector_worker_meta(self) -> VllmWorkerNews | None:
        if self.worker_side is not None:
            news = self.worker_side.take_news()
        else:
            news, self._refusal = self._refusal, None
        return None if news is None else VllmWorkerNews.of(news)

    def reset_cache(self) -> bool:
        if self.scheduler_side is not None:
            self.scheduler_side.reset()
        return True

    def shutdown(self) -> None:
        if self._control is not None:
            self._control.close()
        if self.worker_side is not None:
            self.worker_side.close()
        if self.scheduler_side is not None:
            self.scheduler_side.close()
