"""Settings for this engine, and what it is not ready for."""

from __future__ import annotations

import os
import sys
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

from semblend_core import Settings
from semblend_core.kv import why_keys_do_not_move
from semblend_vllm.compat.stored_types import why_not_stored_so
from semblend_vllm.settings import VllmSettings

SCHEDULER = "SemBlendScheduler"
SCHEDULER_FLAG = f"--scheduler-cls semblend_vllm.{SCHEDULER}"


def configure(vllm_config: Any) -> tuple[Settings, VllmSettings]:
    """The environment's settings, overruled by ``kv_connector_extra_config``: core's, and this adapter's own.

    An entry ``{"quality_tier": "fast"}`` there is the same as ``SEMBLEND_QUALITY_TIER=fast``.
    """
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config or {}
    overrules = {f"SEMBLEND_{name.upper()}": str(value) for name, value in extra.items()}
    environment = {**os.environ, **overrules}
    return Settings.from_env(environment), VllmSettings.from_env(environment)


def replica_of(parallel_config: Any) -> int:
    """The data-parallel replica that this process belongs to."""
    # vLLM tells a replica that shares no weights with others that it is the only one; this is its number all the same.
    index = getattr(parallel_config, "data_parallel_index", None)
    return int(parallel_config.data_parallel_rank if index is None else index)


def why_unsupported(vllm_config: Any, kv_cache_config: Any) -> str | None:
    """Why nothing can be reused in this configuration; None where it can."""
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    groups: list[Any] = list(kv_cache_config.kv_cache_groups) if kv_cache_config is not None else []
    reasons = {
        "pipeline parallelism is not supported yet": parallel.pipeline_parallel_size > 1,
        "context parallelism is not supported yet": getattr(parallel, "decode_context_parallel_size", 1) > 1
        or getattr(parallel, "prefill_context_parallel_size", 1) > 1,
        # It splits a batch in two, and a row may run in one half while the tokens that read it run in the other.
        "dual batch overlap (--enable-dbo, --ubatch-size) is not supported": parallel.use_ubatching,
        f"this vLLM needs our scheduler too: add {SCHEDULER_FLAG}": not (
            has_official_contract() or _runs_our_scheduler(vllm_config)
        ),
        "pooling models generate nothing": getattr(model, "runner_type", "generate") == "pooling",
        "sparse attention keeps an index of its tokens, which would have to move too": bool(
            getattr(model.hf_text_config, "index_topk", None)
        ),
        "the experts of each token (--enable-return-routed-experts) are not known where its KV is reused": (
            _returns_routed_experts(vllm_config)
        ),
    }
    found = next((reason for reason, applies in reasons.items() if applies), None)
    specs = [group.kv_cache_spec for group in groups]
    return (
        found
        or why_not_stored_so(vllm_config)
        or _why_no_speculation(vllm_config)
        or _why_kv_does_not_move(specs)
        # Prompts with images or sound are declined one by one.
        or why_keys_do_not_move(model.hf_text_config, by_layer=True, text_only=True)
    )


def has_official_contract() -> bool:
    """Whether this vLLM tells a connector enough to do without our scheduler: from 0.30 on, its cache manager too."""
    return hasattr(KVConnectorBase_V1, "bind_kv_cache_manager")


def _returns_routed_experts(vllm_config: Any) -> bool:
    """It keeps them by blocks, and takes those that a prompt did not compute for its own exact ones."""
    outputs = getattr(vllm_config, "aux_output_config", None)
    asked = vllm_config.model_config if outputs is None else outputs  # Where the option is differs by version.
    return bool(getattr(asked, "enable_return_routed_experts", False))


def _why_kv_does_not_move(specs: list[Any]) -> str | None:
    """By what vLLM keeps for the groups of layers."""
    kinds = {type(spec).__name__ for spec in specs}
    if any("Mamba" in kind for kind in kinds):
        return "recurrent layers keep a state of all that stands before them, which cannot be moved"
    if any("Chunked" in kind for kind in kinds) or any(getattr(spec, "attention_chunk_size", None) for spec in specs):
        return "chunked attention is not supported: what a token sees depends on where its chunk begins"
    if kinds == {"SlidingWindowSpec"}:
        return "all layers attend to a window, and vLLM drops the KV behind it"
    if "SlidingWindowSpec" in kinds:
        # Then they keep all blocks in one group with the others, and attend to a window of them all the same.
        return "vLLM drops the KV behind sliding windows: add --disable-hybrid-kv-cache-manager, and it is kept"
    if len(specs) > 1:
        return f"models with several kinds of KV ({', '.join(sorted(kinds))}) are not supported yet"
    if not kinds <= {"FullAttentionSpec", "MLAAttentionSpec"}:
        return f"this model's only kind of KV ({', '.join(kinds)}) is not full attention"
    return None


def _why_no_speculation(vllm_config: Any) -> str | None:
    chosen = vllm_config.speculative_config
    if chosen is None or chosen.method == "ngram":
        return None
    return (
        f"speculative decoding by {chosen.method!r} is not supported, only by 'ngram': a drafter has KV or state of "
        "its own, which would have to move too"
    )


def what_is_missed(vllm_config: Any) -> str | None:
    """What is not reused in this configuration, and the flag that would change it; None: nothing is missing."""
    if _runs_our_scheduler(vllm_config):
        return None
    return (
        f"with vLLM's own scheduler only spans that directly continue the exact prefix are reused: add {SCHEDULER_FLAG}"
    )


def _runs_our_scheduler(vllm_config: Any) -> bool:
    return SCHEDULER in str(vllm_config.scheduler_config.scheduler_cls)


def why_not_inside_another(connector: Any) -> str | None:
    """Why nothing can be reused where another connector, as vLLM's MultiConnector, makes this one; None: none does.

    Others store what a request computed under hashes of its tokens, approximate or not, and vLLM's answer to a load
    that failed is theirs. vLLM does not tell a connector of its neighbours: only the caller of its constructor shows.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        maker = frame.f_locals.get("self")
        if isinstance(maker, KVConnectorBase_V1) and maker is not connector:
            return (
                f"it runs inside {type(maker).__name__}, and other connectors would store approximate KV under exact "
                "keys: give vLLM SemBlendConnectorV1 alone, or the others without it"
            )
    return None
