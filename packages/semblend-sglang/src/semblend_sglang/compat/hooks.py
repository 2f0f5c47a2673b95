"""The calls of SGLang's that a radix-cache backend alone does not see, through SGLang's own hook registry.

Every hook passes through at once where the tree cache is not SemBlend's, or has nothing to do for these requests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from semblend_core import DeclineReason
from semblend_core.kv import PagedMeanShift
from semblend_core.serving import Claim, Rows, contain
from semblend_core.serving.tree import Load
from semblend_sglang.compat.attention import replays_rows, storing_first
from semblend_sglang.compat.background import BACKGROUND_HOOKS
from semblend_sglang.compat.probing import choose_rows
from semblend_sglang.compat.ranks import RANK_HOOKS
from semblend_sglang.compat.timing import TIMING_HOOKS
from semblend_sglang.compat.weights import storage_of, weight_hooks
from semblend_sglang.scheduler.fitting import within
from semblend_sglang.scheduler.requests import SglangLife
from semblend_sglang.scheduler.side import Side
from semblend_sglang.worker.correcting import MARK as CORRECTIONS
from semblend_sglang.worker.correcting import Corrections, correcting, correction_of, layer_is_stored
from semblend_sglang.worker.looking import layer_has_attended
from semblend_sglang.worker.sequences import MARK, as_computed, as_requests, as_sequences, for_sampling, running

logger = logging.getLogger(__name__)

Original = Callable[..., Any]


def side_of(tree_cache: Any) -> Side | None:
    side: Side | None = getattr(tree_cache, "semblend", None)
    return side


def add_one_request(original: Original, adder: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    """Admission. Rows take their share of the batch; what is not admitted gives everything back."""
    side = side_of(adder.tree_cache)
    if side is None:
        return _add_with_alias(original, adder, req, *args, **kwargs)
    if side.was_not_asked_about(req):
        return _leave_in_queue(others_go_on=False)  # Nobody overtakes it.
    if _counts_tokens_of_its_batch(req) and side.landing.rows():
        return _leave_in_queue(others_go_on=False)
    life = side.promised(req)
    if life is not None and not adder.tree_cache.semblend_counts_on(req, life):
        life = None
    if life is not None:
        verdict = _verdict_on_claim(adder, side, life) if life.claim is not None else None
        if verdict is not None:
            return verdict
        req.host_hit_length = life.claim.length if life.claim is not None else 0
        side.lineages.hold(life)
    rows = 0 if life is None or life.claim is None else life.claim.most_row_tokens
    before = len(adder.can_run_list)
    _take_room(adder, rows)
    result = original(adder, req, *args, **kwargs)
    admitted = len(adder.can_run_list) > before
    if not admitted or side.landing.of(req) is None:
        _take_room(adder, -rows)
    if life is not None and not admitted:
        side.withdraw(life)
        adder.tree_cache.semblend_forget_private(req)
    if admitted:
        adder.tree_cache.semblend_admitted(req, adder)
        side.admitted(req)
        _alias_admitted(adder.tree_cache, req)
    return result


def _verdict_on_claim(adder: Any, side: Side, life: SglangLife) -> Any | None:
    """What SGLang is told of a request whose claim is not to be had yet; None where it goes on, perhaps without it."""
    donors = side.arrival(life)
    if donors == "coming":
        if not (adder.can_run_list or adder.running_batch.batch_size()):
            time.sleep(0.0005)  # SGLang asks again at once, and the thread that reads needs the interpreter too.
        return _leave_in_queue(others_go_on=True)
    if side.continuing.waits_for_same(life):
        return _leave_in_queue(others_go_on=True)
    claim = life.claim
    if claim is None:
        return None
    fitting = _within_room(adder, side, claim) if adder.tree_cache.semblend_may_load() else None
    if fitting is claim:
        return None
    most_is_lost = fitting is None or 2 * fitting.reused_tokens < claim.reused_tokens
    if most_is_lost and adder.can_run_list and side.may_wait(life):
        return _leave_in_queue(others_go_on=False)
    if fitting is None:
        side.give_up(life, DeclineReason.ALLOCATION_FAILED)
    else:
        side.requests.shorten(life, fitting)
    return None


def _add_with_alias(original: Original, adder: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(adder, req, *args, **kwargs)
    if req in adder.can_run_list:
        _alias_admitted(adder.tree_cache, req)
    return result


def _alias_admitted(tree_cache: Any, req: Any) -> None:
    aliases = getattr(tree_cache, "semblend_aliases", None)
    if aliases is not None:
        contain("admitting a request", aliases.admitted, req)


def ask_storage(original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """SGLang asks its storage for what lies behind the exact prefix of a request, which a claim would make longer."""
    with getattr(scheduler.tree_cache, "semblend_exact_only", nullcontext)():
        return original(scheduler, *args, **kwargs)


def make_forward_batch(original: Original, cls: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Right before a forward: add the rows of the requests that are computed for the first time."""
    side = side_of(getattr(batch, "tree_cache", None))
    if side is None or not side.landing.loads or not batch.forward_mode.is_extend():
        return original(cls, batch, *args, **kwargs)
    side.landing.started.clear()
    loads = {index: load for index, req in enumerate(batch.reqs) if (load := side.landing.of(req)) is not None}
    runner = args[0] if args else kwargs.get("model_runner")
    loads = choose_rows(side, batch, loads, lambda: original(cls, batch, *args, **kwargs), runner)
    rows = {index: load.claim.rows for index, load in loads.items() if load.claim.rows}
    prompts = {index: load.token_ids for index, load in loads.items()}
    if rows:
        fault = None
        try:
            forward_batch = _make_with_rows(original, cls, batch, rows, prompts, *args, **kwargs)
            corrections = _corrections(side, batch, loads)
        except Exception as error:
            logger.exception("a batch could not be made with rows: its prompts are computed")
            fault = error
        if not side.all_can(fault is None):
            # Whatever it was, SGLang's forward must go on, and the slots of rows are empty: all is computed.
            contain("computing claims", side.rows_failed, batch.reqs, fault)
            with as_computed(batch, _not_cached(batch, loads), prompts):
                return original(cls, batch, *args, **kwargs)
    else:
        corrections, forward_batch = [], original(cls, batch, *args, **kwargs)
    if loads:
        setattr(forward_batch, CORRECTIONS, Corrections(corrections, side.pool.layers, side.forward_ended))
    for index, load in loads.items():
        req = batch.reqs[index]
        contain("starting a request", side.landing.start, req)
        # SGLang's split of what was cached took the whole claim for loaded.
        req.cached_tokens_host = max(0, req.cached_tokens_host - batch.tree_cache.semblend_not_shown(load))
    return forward_batch


def _make_with_rows(
    original: Original, cls: Any, batch: Any, rows: dict[int, Rows], prompts: dict[int, Any], *args: Any, **kwargs: Any
) -> Any:
    with as_sequences(batch, rows, prompts) as view:
        forward_batch = original(cls, batch, *args, **kwargs)
    for_sampling(forward_batch, batch.reqs, view)
    setattr(forward_batch, MARK, view)
    return forward_batch


def _corrections(side: Side, batch: Any, loads: dict[int, Load]) -> list[PagedMeanShift]:
    """Made here, on the stream of the forward, and behind what was moved for it."""
    made = [
        correction_of(load, batch.tree_cache.semblend_row(batch.reqs[index]), side.pool)
        for index, load in loads.items()
    ]
    return [correction for correction in made if correction is not None]


def _not_cached(batch: Any, loads: dict[int, Load]) -> dict[int, tuple[int, int]]:
    """The claims of the requests with these loads. SGLang has counted them as cached: they are computed after all."""
    for index, load in loads.items():
        req = batch.reqs[index]
        req.cached_tokens -= load.claim.length - batch.tree_cache.semblend_not_shown(load)
        req.cached_tokens_host = max(0, req.cached_tokens_host - load.claim.length)
    return {index: (load.claim.start, load.claim.end) for index, load in loads.items()}


def make_logits_metadata(original: Original, cls: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Behind attention: the last token of each request, not of each sequence."""
    return original(cls, as_requests(forward_batch), *args, **kwargs)


def run_model(original: Original, runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
    has_rows = getattr(forward_batch, MARK, None) is not None
    with running(forward_batch), correcting(forward_batch), storing_first(runner, has_rows):
        return original(runner, forward_batch, *args, **kwargs)


def store_kv(original: Original, pool: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(pool, layer, *args, **kwargs)
    layer_is_stored(layer)
    return result


def attend(
    original: Original,
    backend: Any,
    q: Any = None,
    k: Any = None,
    v: Any = None,
    layer: Any = None,
    forward_batch: Any = None,
    save_kv_cache: bool = True,
    **kwargs: Any,
) -> Any:
    """A model that has stored its KV in a kernel of its own, as with rotation, asks attention not to."""
    if not save_kv_cache:
        layer_is_stored(layer)
    result = original(backend, q, k, v, layer, forward_batch, save_kv_cache, **kwargs)
    layer_has_attended(layer, q)
    return result


def can_run_graph(original: Original, graphs: Any, forward_batch: Any) -> Any:
    """A batch with rows replays a captured prefill where attention is no part of what was captured."""
    if getattr(forward_batch, MARK, None) is not None and not replays_rows(graphs, forward_batch):
        return False
    return original(graphs, forward_batch)


def abort_request(original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """A request that is aborted while it waits leaves the queue without a word to the tree cache."""
    result = original(scheduler, *args, **kwargs)
    parts = (side_of(scheduler.tree_cache), getattr(scheduler.tree_cache, "semblend_aliases", None))
    for part in (each for each in parts if each is not None):
        waiting = {req.rid for req in scheduler.waiting_queue}
        for request_id in part.requests.waiting - waiting:
            part.leave_queue(request_id)
    return result


def purge_storage(tree_cache: Any) -> None:
    """Pages on disk do not say whose they are: all of them go."""
    contain("a purge of durable pages", getattr(storage_of(tree_cache), "semblend_purge", lambda: None))


def _within_room(adder: Any, side: Side, claim: Claim) -> Claim | None:
    """As much of ``claim`` as this batch can hold, by the tokens and the number of its rows.

    A page of the request itself must fit too.
    """
    if not claim.rows and claim.probing is None:
        return claim
    if any(_counts_tokens_of_its_batch(other) for other in adder.can_run_list):
        return None
    tokens = adder.rem_chunk_tokens if adder.rem_chunk_tokens is not None else adder.rem_input_tokens
    sequences = side.landing.rows() + len(adder.can_run_list) + 1
    if side.limits.with_decoding:
        sequences += adder.running_batch.batch_size()
    return within(claim, tokens - adder.page_size, side.limits.sequences - sequences, adder.page_size)


def _counts_tokens_of_its_batch(req: Any) -> bool:
    """Whether SGLang finds something of this request by counting the batch's tokens, which rows would shift."""
    by_token = ("positional_embed_overrides", "input_embeds", "token_type_ids")
    return bool(req.return_hidden_states) or any(getattr(req, name, None) is not None for name in by_token)


def _take_room(adder: Any, tokens: int) -> None:
    adder.rem_input_tokens -= tokens
    if adder.rem_chunk_tokens is not None:
        adder.rem_chunk_tokens -= tokens


def _leave_in_queue(*, others_go_on: bool) -> Any:
    """Whether SGLang goes on with the request behind it, as it does for those whose KV its own cache fetches."""
    from sglang.srt.managers.schedule_policy import AddReqResult

    return AddReqResult.CONTINUE if others_go_on else AddReqResult.OTHER


_HOOKS: dict[str, Callable[..., Any]] = {
    "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req": add_one_request,
    "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new": make_forward_batch,
    "sglang.srt.layers.logits_processor.LogitsMetadata.from_forward_batch": make_logits_metadata,
    "sglang.srt.model_executor.model_runner.ModelRunner.forward": run_model,
    "sglang.srt.model_executor.runner.prefill_cuda_graph_runner.PrefillCudaGraphRunner.can_run_graph": can_run_graph,
    "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool.set_kv_buffer": store_kv,
    "sglang.srt.mem_cache.memory_pool.MLATokenToKVPool.set_kv_buffer": store_kv,
    "sglang.srt.mem_cache.memory_pool.MLATokenToKVPool.set_mla_kv_buffer": store_kv,
    "sglang.srt.layers.attention.base_attn_backend.AttentionBackend.forward": attend,
    "sglang.srt.managers.scheduler.Scheduler.abort_request": abort_request,
    "sglang.srt.managers.scheduler.Scheduler._prefetch_kvcache": ask_storage,
    **TIMING_HOOKS,
    **BACKGROUND_HOOKS,
    **RANK_HOOKS,
}


def all_hooks() -> dict[str, Callable[..., Any]]:
    """By the function that each is wrapped around. Needs SGLang."""
    return {**_HOOKS, **weight_hooks()}


def why_not_hooked() -> str | None:
    """Why the hooks are not in place, as after a change inside SGLang that no version number told; None: they are.

    Without them relocated KV would be used and rows not computed, so nothing may be reused then.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    missing = sorted(set(all_hooks()) - HookRegistry._patched)
    return f"SGLang did not apply the hooks on {', '.join(missing)}" if missing else None
