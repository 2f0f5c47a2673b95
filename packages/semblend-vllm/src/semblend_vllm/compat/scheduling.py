"""vLLM's scheduler: its batch, its waiting requests, and how rows get into a step of it."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from semblend_core.serving import LIKELIEST, Scored
from semblend_vllm.compat.row_tokens import RowTokens

ROW_MARK = "#row"
"""Between a request's id and where its row starts, in the row's id."""
FEW_RUNNING = 0.125
"""Of the requests that may run at once: with more, vLLM has no room for work of our own."""
MOST_USED = 0.5
"""Of its KV blocks."""


@dataclass(frozen=True)
class StepLimits:
    tokens: int
    sequences: int

    def less(self, tokens: int, sequences: int) -> StepLimits:
        return StepLimits(self.tokens - tokens, self.sequences - sequences)


def step_limits(scheduler: Any) -> StepLimits:
    return StepLimits(scheduler.max_num_scheduled_tokens, getattr(scheduler, _admission_limit(scheduler)))


def set_step_limits(scheduler: Any, limits: StepLimits) -> None:
    # Only admission is limited: requests that run already stay within what vLLM itself checks.
    scheduler.max_num_scheduled_tokens = limits.tokens
    lowest = len(scheduler.running) if _admission_limit(scheduler) == "max_num_running_reqs" else 0
    setattr(scheduler, _admission_limit(scheduler), max(limits.sequences, lowest))


def hold_place(scheduler: Any) -> None:
    """Within a step: one request less may be admitted."""
    limit = _admission_limit(scheduler)
    setattr(scheduler, limit, max(getattr(scheduler, limit) - 1, len(scheduler.running)))


def _admission_limit(scheduler: Any) -> str:
    return "max_num_active_reqs" if hasattr(scheduler, "max_num_active_reqs") else "max_num_running_reqs"


def held_sequences(scheduler: Any) -> int:
    """Places in the workers' batch that are taken; sessions that wait for more input keep theirs."""
    return len(scheduler.running) + getattr(scheduler, "num_waiting_for_streaming_input", 0)


def is_chunked(scheduler: Any) -> bool:
    return bool(scheduler.scheduler_config.enable_chunked_prefill)


def waiting_requests(scheduler: Any) -> Iterator[Any]:
    """Requests that the next step may admit afresh, in their order."""
    # Before 0.31 vLLM keeps those that it was asked to ask again in a queue of their own.
    for request in chain(getattr(scheduler, "skipped_waiting", ()), scheduler.waiting):
        if request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED) and request.num_computed_tokens == 0:
            yield request


def exact_prefix_tokens(scheduler: Any, request: Any) -> int:
    """What vLLM's own cache holds of the request, in whole blocks, as it will most likely tell the connector."""
    if not keeps_prefixes(scheduler) or request.skip_reading_prefix_cache:
        return 0
    return published_tokens(scheduler, request.block_hashes[: (request.num_tokens - 1) // int(scheduler.block_size)])


def published_tokens(scheduler: Any, hashes: Sequence[Any]) -> int:
    """How many tokens of whole blocks, from the first on, vLLM's own cache holds under these hashes.

    Found by halving: a walk over the blocks of a long hit takes milliseconds, and vLLM will do one of its own. Where an
    earlier block is gone and a later one is not, vLLM's answer differs, and the plan is made again.
    """
    get = scheduler.kv_cache_manager.block_pool.get_cached_block
    return bisect_left(hashes, True, key=lambda block_hash: get(block_hash, [0]) is None) * int(scheduler.block_size)


def request_like(
    request: Any, request_id: str, tokens: Sequence[int], make_hashes: Any, *, scored: bool = False
) -> Request:
    """One of our own for tokens that another began with: without reuse, and nobody waits for its answer.

    ``scored``: the model runner tells the logprobs of those of its tokens that vLLM's cache does not hold.
    """
    # By itself vLLM computes a prompt whose logprobs are asked for from its first token on.
    scores: dict[str, Any] = {"prompt_logprobs": LIKELIEST, "skip_reading_prefix_cache": False} if scored else {}
    sampling = SamplingParams(
        temperature=0.0, max_tokens=1, ignore_eos=True, extra_args={"kv_transfer_params": {"semblend": "off"}}, **scores
    )
    own = Request(
        request_id,
        list(tokens),
        sampling,
        None,
        client_index=request.client_index,
        lora_request=request.lora_request,
        cache_salt=request.cache_salt,
        block_hasher=make_hashes,
    )
    # What users read of vLLM's caches is of those that come for the first time. Ours counts as one that comes back.
    own.num_preemptions = 1
    return own


def is_idle(scheduler: Any) -> bool:
    """Whether it has nothing to do. One that is paused shall do nothing."""
    return not scheduler.has_unfinished_requests() and bool(scheduler.pause_state == PauseState.UNPAUSED)


def has_room(scheduler: Any, beside: Any = None) -> bool:
    """Whether it has little to do, nobody waits, and no prompt is being computed. ``beside``: leave this one out."""
    if scheduler.pause_state != PauseState.UNPAUSED or scheduler.kv_cache_manager.usage > MOST_USED:
        return False
    others = [each for each in scheduler.running if each is not beside]
    waiting = scheduler.get_num_unfinished_requests() - len(others) - (beside is not None)
    few = len(others) <= FEW_RUNNING * scheduler.max_num_running_reqs
    return few and not waiting and all(each.num_computed_tokens >= each.num_prompt_tokens for each in others)


def keeps_prefixes(scheduler: Any) -> bool:
    return bool(scheduler.kv_cache_manager.enable_caching)


def has_replicas(scheduler: Any) -> bool:
    """They step together, and one that works by itself would make the others step too."""
    return bool(scheduler.vllm_config.parallel_config.data_parallel_size > 1)


def why_not_scored(scheduler: Any) -> str | None:
    """Why prompts of our own cannot be scored here; None: they can."""
    if not keeps_prefixes(scheduler):
        return "vLLM's prefix caching is off"
    if has_replicas(scheduler):
        return "there are several replicas"
    if getattr(scheduler.vllm_config.cache_config, "kv_sharing_fast_prefill", False):
        return "vLLM gives no logprobs of prompts with --kv-sharing-fast-prefill"
    return None


def take_scores(output: Any, request_id: str, positions: int) -> Scored | None:
    """What a step said of the last ``positions`` tokens of a prompt; None: nothing yet. Nobody else hears of it."""
    tensors = output.prompt_logprobs_dict.pop(request_id, None) if output.prompt_logprobs_dict else None
    if tensors is None:
        return None
    # One model runner gives a row for every token of the prompt, the other for those that it computed. In front of the
    # likeliest stands the token itself.
    ids, logprobs = (each[-positions:, 1:] for each in (tensors.logprob_token_ids, tensors.logprobs))
    return Scored(np.asarray(ids.cpu(), np.int64), np.asarray(logprobs.cpu(), np.float64))


def is_paused(scheduler: Any) -> bool:
    """Whether nothing is computed for requests that wait, not even if they hold blocks."""
    if scheduler.pause_state == PauseState.PAUSED_NEW:
        return not _goes_on_while_paused()
    return bool(scheduler.pause_state == PauseState.PAUSED_ALL)


def _goes_on_while_paused() -> bool:
    """Whether vLLM computes requests that hold blocks while new ones wait. 0.32 does, and counts them as unfinished."""
    return "kv_holding_waiting" in Scheduler.get_num_unfinished_requests.__code__.co_names


def is_alone(scheduler: Any, request: Any) -> bool:
    return all(other is request for other in scheduler.requests.values())


def abort(scheduler: Any, request: Any) -> None:
    scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)


def add_rows(scheduler: Any, output: SchedulerOutput, request: Any, rows: Sequence[tuple[int, int]]) -> list[str]:
    """Put the rows of ``request`` into a step that has it already. Returns the ids they go by."""
    if not rows:
        return []
    block_ids = scheduler.kv_cache_manager.get_block_ids(request.request_id)
    sampling, prompt = SamplingParams(temperature=0.0, max_tokens=1), request.prompt_token_ids
    ids = []
    for start, end in rows:
        row_id = f"{request.request_id}{ROW_MARK}{start}"
        tokens = RowTokens.of(prompt, start, end)  # An unfinished prefill, so neither model runner samples.
        output.scheduled_new_reqs.append(
            NewRequestData(
                req_id=row_id,
                prompt_token_ids=tokens,
                mm_features=[],
                sampling_params=sampling,
                pooling_params=None,
                block_ids=tuple(list(group[: -(-end // scheduler.block_size)]) for group in block_ids),
                num_computed_tokens=start,
                lora_request=request.lora_request,
                **({"prefill_token_ids": tokens} if scheduler.use_v2_model_runner else {}),
            )
        )
        output.num_scheduled_tokens[row_id] = end - start
        output.total_num_scheduled_tokens += end - start
        ids.append(row_id)
    if output.num_common_prefix_blocks:
        # Rows share blocks with their request in a way that cascade attention does not expect.
        output.num_common_prefix_blocks = [0] * len(output.num_common_prefix_blocks)
    return ids


def count_as_found(scheduler: Any, request: Any, before: int, now: int, shown: int) -> None:
    """vLLM counted ``before`` tokens as found outside of its cache; ``now`` were, and a client reads ``shown``."""
    statistics = scheduler.connector_prefix_cache_stats
    if statistics is not None and statistics.hits >= before - now:
        statistics.hits -= before - now
    show_as_found(request, shown)


def show_as_found(request: Any, shown: int) -> None:
    """Of what vLLM counted as found outside of its cache, a client reads ``shown`` tokens."""
    prefill = request.prefill_stats
    if prefill is not None and prefill.num_external_cached_tokens:
        prefill.set(
            num_prompt_tokens=prefill.num_prompt_tokens,
            num_local_cached_tokens=prefill.num_local_cached_tokens,
            num_external_cached_tokens=shown,
        )


def finish_step(scheduler: Any, output: SchedulerOutput, was_empty: bool) -> None:
    """Say of a finished step what vLLM decides before rows are added to it."""
    work = output.kv_connector_metadata
    ordered = work is not None and (work.loads or work.corrections or work.probes)
    if ordered and hasattr(output, "has_sync_kv_loads"):
        # Otherwise vLLM lets connectors begin behind the forward, from 0.29 on.
        output.has_sync_kv_loads = True
    if was_empty and output.total_num_scheduled_tokens and scheduler.defer_block_free:
        scheduler.sched_step_seq += 1  # It numbers the steps that compute something.


def end_waiting(scheduler: Any, request_ids: Iterable[str]) -> None:
    """Say that nothing more is loaded for requests that wait with their blocks in hand, or were aborted meanwhile."""
    known = {request_id for request_id in request_ids if request_id in scheduler.requests}
    if known:
        scheduler._update_from_kv_xfer_finished(KVConnectorOutput(finished_recving=known))


def go_on_from(request: Any, tokens: int) -> None:
    """Of one that waits: what lies behind so many of its first tokens is to be computed, although it has blocks."""
    request.num_computed_tokens = tokens


def blocks_are_freed(scheduler: Any) -> bool:
    """Whether some request has blocks, which it will give back, or some are on their way back."""
    if scheduler.running or scheduler.deferred_frees:
        return True
    return any(waits_with_blocks(request) for request in scheduler.requests.values())


def waits_with_blocks(request: Any) -> bool:
    return bool(request.status != RequestStatus.RUNNING and request.num_computed_tokens and not request.is_finished())


def start_over(scheduler: Any, request: Any, output: Any) -> None:
    """Give a request's blocks back and let it wait for its turn again; what it has in flight is dropped.

    ``output``: the results that are about to be processed, if any.
    """
    if request.status == RequestStatus.RUNNING:
        scheduler.running.remove(request)
        scheduler._preempt_request(request, time.monotonic())
    elif waits_with_blocks(request):
        _give_blocks_back(scheduler, request)
    if request.status != RequestStatus.PREEMPTED:
        return
    _drop_in_flight(scheduler, request, output)
    # It may be in the very next step: workers must take it for one that comes back, not for one that goes on.
    scheduler.prev_step_scheduled_req_ids.discard(request.request_id)


def _give_blocks_back(scheduler: Any, request: Any) -> None:
    """Of one that waits: for its load, or for room in a step after its load was said to have ended."""
    scheduler._inflight_prefills.discard(request)
    scheduler._free_request_blocks(request)
    request.num_computed_tokens = 0
    if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
        scheduler.finished_recving_kv_req_ids.discard(request.request_id)
        request.status = RequestStatus.PREEMPTED if request.num_preemptions else RequestStatus.WAITING
    holding = getattr(scheduler, "kv_holding_waiting", None)
    if holding is not None and request in holding:  # Before 0.31 one queue has all that were skipped.
        holding.remove_request(request)
        scheduler.deferred_waiting.discard(request)
        scheduler.waiting.prepend_request(request)


@contextmanager
def blocks_freed_at_once(scheduler: Any) -> Iterator[None]:
    """Not held back until the steps in flight have ended. Our loads come behind those on the device, as forwards do."""
    while scheduler.deferred_frees:
        _, blocks = scheduler.deferred_frees.popleft()
        scheduler.kv_cache_manager.block_pool.free_blocks(reversed(blocks))
    deferring, scheduler.defer_block_free = scheduler.defer_block_free, False
    try:
        yield
    finally:
        scheduler.defer_block_free = deferring


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
    # vLLM 0.29 has such a state and no way to ask it. There our scheduler is needed, which knows the manager.
    asked = state if hasattr(state, "get_block_ids") else manager
    return list(asked.get_block_ids(request_id)[0])
