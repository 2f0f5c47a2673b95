"""What this adapter knows of vLLM's insides, and of which versions. Nothing else here depends on a version."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus

from semblend_core.kv import PagedKv, Rotation
from semblend_vllm.cpu_cache import PackedCpuCache
from semblend_vllm.engine_cache import EngineCache, PagedCache
from semblend_vllm.presence import installed_version
from semblend_vllm.settings import VllmSettings

logger = logging.getLogger(__name__)

TESTED_VERSIONS = ("0.26.0", "0.32.0")


class UnsupportedVllmError(RuntimeError):
    """This vLLM, or this way of running it, is not one the adapter was tested with."""


def check_version(forced: bool) -> None:
    version = installed_version()
    if version in TESTED_VERSIONS:
        return
    tested = " and ".join(TESTED_VERSIONS)
    if not forced:
        raise UnsupportedVllmError(
            f"semblend-vllm is tested with vLLM {tested}, this is {version}: install one of them, "
            f"or set {VllmSettings.variable('force_version')}=1 to try it at your own risk"
        )
    logger.warning("vLLM %s was never tested with semblend-vllm (tested: %s)", version, tested)


def has_official_contract() -> bool:
    """Whether this vLLM tells a connector enough to do without our scheduler."""
    return not (installed_version() or "").startswith("0.26.")


# --- The scheduler -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchLimits:
    tokens: int
    sequences: int

    def less(self, tokens: int, sequences: int) -> BatchLimits:
        return BatchLimits(self.tokens - tokens, self.sequences - sequences)


def scheduler_side_of(scheduler: Any) -> Any:
    from semblend_vllm.connector import SemBlendConnectorV1

    connector = scheduler.connector
    return connector.scheduler_side if isinstance(connector, SemBlendConnectorV1) else None


def batch_limits(scheduler: Any) -> BatchLimits:
    return BatchLimits(scheduler.max_num_scheduled_tokens, getattr(scheduler, _admission_limit(scheduler)))


def set_batch_limits(scheduler: Any, limits: BatchLimits) -> None:
    # Only admission is limited: requests that run already stay within what vLLM itself checks.
    scheduler.max_num_scheduled_tokens = limits.tokens
    lowest = len(scheduler.running) if _admission_limit(scheduler) == "max_num_running_reqs" else 0
    setattr(scheduler, _admission_limit(scheduler), max(limits.sequences, lowest))


def _admission_limit(scheduler: Any) -> str:
    return "max_num_active_reqs" if hasattr(scheduler, "max_num_active_reqs") else "max_num_running_reqs"


def held_sequences(scheduler: Any) -> int:
    """Places in the workers' batch that are taken; sessions that wait for more input keep theirs."""
    return len(scheduler.running) + getattr(scheduler, "num_waiting_for_streaming_input", 0)


def is_chunked(scheduler: Any) -> bool:
    return bool(scheduler.scheduler_config.enable_chunked_prefill)


def waiting_requests(scheduler: Any) -> Iterator[Any]:
    """Requests that the next step may admit afresh, in their order."""
    # vLLM 0.26 keeps those that it was asked to ask again in a queue of their own.
    for request in chain(getattr(scheduler, "skipped_waiting", ()), scheduler.waiting):
        if request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED) and request.num_computed_tokens == 0:
            yield request


def exact_prefix_tokens(scheduler: Any, request: Any) -> int:
    """What vLLM's own cache holds of the request, in whole blocks, as it will most likely tell the connector.

    Found by halving: a walk over the blocks of a long hit takes milliseconds, and vLLM will do one of its own. Where an
    earlier block is gone and a later one is not, vLLM's answer differs, and the plan is made again.
    """
    manager, hashes = scheduler.kv_cache_manager, request.block_hashes
    if not manager.enable_caching or request.skip_reading_prefix_cache:
        return 0
    block_size = int(scheduler.block_size)
    candidates = hashes[: (request.num_tokens - 1) // block_size]
    get = manager.block_pool.get_cached_block
    blocks = bisect_left(candidates, True, key=lambda block_hash: get(block_hash, [0]) is None)
    return blocks * block_size


def add_rows(scheduler: Any, output: SchedulerOutput, request: Any, rows: Sequence[tuple[int, int]]) -> list[str]:
    """Put the rows of ``request`` into a step that has it already. Returns the ids they go by."""
    if not rows:
        return []
    block_ids = scheduler.kv_cache_manager.get_block_ids(request.request_id)
    tokens = list(request.prompt_token_ids)
    ids = []
    for start, end in rows:
        row_id = f"{request.request_id}#row{start}"
        # One token more than is computed: an unfinished prefill samples nothing, in either model runner.
        cut = tokens[: end + 1]
        output.scheduled_new_reqs.append(
            NewRequestData(
                req_id=row_id,
                prompt_token_ids=cut,
                mm_features=[],
                sampling_params=SamplingParams(temperature=0.0, max_tokens=1),
                pooling_params=None,
                block_ids=tuple(list(group[: -(-end // scheduler.block_size)]) for group in block_ids),
                num_computed_tokens=start,
                lora_request=request.lora_request,
                **({"prefill_token_ids": cut} if scheduler.use_v2_model_runner else {}),
            )
        )
        output.num_scheduled_tokens[row_id] = end - start
        output.total_num_scheduled_tokens += end - start
        ids.append(row_id)
    if output.num_common_prefix_blocks:
        # Rows share blocks with their request in a way that cascade attention does not expect.
        output.num_common_prefix_blocks = [0] * len(output.num_common_prefix_blocks)
    return ids


def count_as_found(scheduler: Any, request: Any, before: int, now: int) -> None:
    """vLLM counted ``before`` tokens as found outside of its cache, and ``now`` is what was."""
    statistics = scheduler.connector_prefix_cache_stats
    if statistics is not None and statistics.hits >= before - now:
        statistics.hits -= before - now
    prefill = request.prefill_stats
    if prefill is not None and prefill.num_external_cached_tokens == before:
        prefill.set(
            num_prompt_tokens=prefill.num_prompt_tokens,
            num_local_cached_tokens=prefill.num_local_cached_tokens,
            num_external_cached_tokens=now,
        )


def finish_step(scheduler: Any, output: SchedulerOutput, was_empty: bool) -> None:
    """Say of a finished step what vLLM decides before rows are added to it."""
    work = output.kv_connector_metadata
    if work is not None and (work.loads or work.corrections) and hasattr(output, "has_sync_kv_loads"):
        # Otherwise vLLM 0.32 lets connectors begin behind the forward.
        output.has_sync_kv_loads = True
    if was_empty and output.total_num_scheduled_tokens and scheduler.defer_block_free:
        scheduler.sched_step_seq += 1  # It numbers the steps that compute something.


def end_waiting(scheduler: Any, request_ids: Iterable[str]) -> None:
    """Say that nothing more is loaded for requests that wait with their blocks in hand, or were aborted meanwhile."""
    known = {request_id for request_id in request_ids if request_id in scheduler.requests}
    if known:
        scheduler._update_from_kv_xfer_finished(KVConnectorOutput(finished_recving=known))


def start_over(scheduler: Any, request: Any, output: Any) -> None:
    """Give a request's blocks back and let it wait for its turn again; what it has in flight is dropped.

    ``output``: the results that are about to be processed, if any.
    """
    if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
        # With nothing computed vLLM gives its blocks back when it is told that the load has ended.
        request.num_computed_tokens = 0
        scheduler.failed_recving_kv_req_ids.add(request.request_id)
        end_waiting(scheduler, [request.request_id])
    elif request.status == RequestStatus.RUNNING:
        scheduler.running.remove(request)
        scheduler._preempt_request(request, time.monotonic())
    elif request.num_computed_tokens:
        # Its load was said to have ended, and no step has had room for it yet: it waits with its blocks in hand.
        scheduler._inflight_prefills.discard(request)
        scheduler._free_request_blocks(request)
        request.num_computed_tokens = 0
    if request.status != RequestStatus.PREEMPTED:
        return
    _drop_in_flight(scheduler, request, output)
    # It may be in the very next step: workers must take it for one that comes back, not for one that goes on.
    scheduler.prev_step_scheduled_req_ids.discard(request.request_id)


def _drop_in_flight(scheduler: Any, request: Any, output: Any) -> None:
    """What a preempted request has in flight is delivered by vLLM; of this one it is worth nothing."""
    if hasattr(request, "drop_stale_output"):
        request.drop_stale_output = True
    elif isinstance(scheduler, AsyncScheduler):
        request.async_tokens_to_discard += request.num_output_placeholders
        request.num_output_placeholders = 0
    elif output is not None and output.sampled_token_ids:
        output.sampled_token_ids[output.req_id_to_index[request.request_id]] = []


def block_ids_in(output: SchedulerOutput, manager: Any, request_id: str) -> list[int]:
    state = getattr(output, "kv_connector_block_state", None)
    groups = state.get_block_ids(request_id) if state is not None else manager.get_block_ids(request_id)
    return list(groups[0])


# --- The worker --------------------------------------------------------------------------------------------------


def engine_cache(vllm_config: Any, kv_caches: dict[str, torch.Tensor], rotation: Rotation) -> EngineCache:
    """The registered KV tensors, in the order of the layers."""
    layers = [kv_caches[name] for name in in_order(kv_caches)]
    if layers[0].dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise UnsupportedVllmError(f"a KV cache of {layers[0].dtype} is not supported yet")
    first, head_size = layers[0], vllm_config.model_config.get_head_size()
    if first.device.type == "cpu":
        return PackedCpuCache(layers, _cpu_writer(vllm_config, first), rotation)
    if first.dim() == 4 and first.shape[3] == 2 * head_size:
        return PagedCache(PagedKv.from_joined(layers, head_size), rotation)
    if first.dim() == 5 and 2 in first.shape[:2]:
        return PagedCache(PagedKv.from_stacked(layers, 0 if first.shape[0] == 2 else 1), rotation)
    raise UnsupportedVllmError(f"the attention backend keeps KV as {tuple(first.shape)}, which is not known")


def why_no_correction(vllm_config: Any, names: Iterable[str]) -> str | None:
    """Why nothing can be done between a layer's KV update and its attention; None where it can."""
    context = vllm_config.compilation_config.static_forward_context
    for name in names:
        backend = getattr(context.get(name), "attn_backend", None)
        if getattr(backend, "forward_includes_kv_cache_update", False):
            return f"{backend.__name__} updates KV and attends to it in one operation"
    return None


def why_no_steps_between_layers(vllm_config: Any) -> str | None:
    """The same, as far as the configuration tells: a graph of the whole forward has no place for Python."""
    mode = vllm_config.compilation_config.cudagraph_mode
    if mode is None or vllm_config.model_config.enforce_eager:
        return None
    if mode.mixed_mode().name == "FULL":
        return "cudagraph_mode=FULL also captures prefills; use FULL_AND_PIECEWISE, which is vLLM's default"
    return None


def tensor_parallel_rank() -> int:
    from vllm.distributed import get_tensor_model_parallel_rank

    return int(get_tensor_model_parallel_rank())


def _cpu_writer(vllm_config: Any, cache: torch.Tensor) -> Any:
    from vllm import _custom_ops as operators
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    _, _, block_size, both = cache.shape
    isa = _get_attn_isa(vllm_config.model_config.dtype, block_size, both // 2, vllm_config.cache_config.cache_dtype)

    def write(keys: Any, values: Any, key_cache: Any, value_cache: Any, slots: Any) -> None:
        operators.cpu_attn_reshape_and_cache(keys, values, key_cache, value_cache, slots, isa)

    return write


def in_order(kv_caches: dict[str, torch.Tensor]) -> list[str]:
    """Layers' names, the first layer first."""
    return sorted(kv_caches, key=_layer_number)


def _layer_number(name: str) -> list[int]:
    return [int(part) for part in name.split(".") if part.isdigit()]
