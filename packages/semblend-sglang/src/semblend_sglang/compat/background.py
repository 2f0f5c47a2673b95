"""How an idle scheduler of SGLang's computes requests of our own: pieces of openings, and answers to be compared."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from semblend_core.serving import LIKELIEST, Scored, contain
from semblend_sglang.compat.support import resolved
from semblend_sglang.scheduler.orders import Asker, Order
from semblend_sglang.scheduler.side import Side

Original = Callable[..., Any]

_numbers = count()


def on_idle(original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Nothing is to be done: time for a piece of an opening that many ask for, or of a comparison.

    It is computed to its end before SGLang hears of anything new. So it is never in anyone's way: neither in the
    queue, nor when SGLang is told to flush its cache or to update its weights, which it refuses while requests run.
    """
    side: Side | None = getattr(scheduler.tree_cache, "semblend", None)
    if side is None or not (side.background.has_work or side.comparing.has_work) or not _may_work(scheduler):
        return original(scheduler, *args, **kwargs)
    if not (_compute_piece(scheduler, side) or _compare(scheduler, side)):
        return original(scheduler, *args, **kwargs)
    return None


def _compute_piece(scheduler: Any, side: Side) -> bool:
    """Whether there was one."""
    piece = side.background.next_piece()
    if piece is None:
        return False
    _compute(scheduler, piece.order)
    side.background.computed(piece)
    return True


def _compare(scheduler: Any, side: Side) -> bool:
    """Whether there was anything to compare."""
    found = contain("going on with a comparison", side.comparing.next_order)
    if found is None:
        return False
    comparison, order = found
    request = _compute(scheduler, order)
    scored = contain("reading scores", _scores_of, request, comparison.answer.size)
    side.comparing.computed(comparison, order, scored)
    side.changed()
    return True


def why_never_idle(server_args: Any) -> str | None:
    """Why nothing is ever computed in the background; None: it is.

    Other ranks or replicas would have to be told.
    """
    arguments = resolved(server_args)
    return None if arguments.tp_size == 1 and arguments.dp_size == 1 else "SGLang has several ranks or replicas"


def _may_work(scheduler: Any) -> bool:
    """Not where the answer goes to SGLang's server in Rust, which expects none."""
    alone = why_never_idle(scheduler.server_args) is None and getattr(scheduler, "rust_server", None) is None
    return alone and not _gave_memory_back(scheduler) and bool(scheduler.is_fully_idle())


def _gave_memory_back(scheduler: Any) -> bool:
    """Whether weights, KV or graphs are not there, as a trainer asked. SGLang empties its cache for the KV alone."""
    return bool(getattr(getattr(scheduler, "weight_updater", None), "offload_tags", ()))


def _compute(scheduler: Any, order: Order) -> Any | None:
    """One request, from the queue to its end, in the steps of SGLang's own loop. What raises in them is SGLang's.

    The request; None where there was no use in it.
    """
    name = contain("ordering a request of our own", _order, scheduler, order)
    ours = next((request for request in scheduler.waiting_queue if request.rid == name), None)
    if ours is not None:
        contain("beginning a request of our own", order.begin, ours)
    batch = None
    while name is not None:
        plan = scheduler.get_next_batch_to_run(running_batch=scheduler.running_batch, last_batch=batch)
        scheduler.running_batch, batch = plan.running_batch, plan.batch_to_run
        if not batch:
            break
        result = scheduler.run_batch(batch)
        if scheduler.enable_overlap:
            scheduler._apply_war_barrier()
            scheduler.launch_batch_sample_if_needed(result, batch)
        scheduler.process_batch_result(batch.copy() if scheduler.enable_overlap else batch, result)
    for request in [request for request in scheduler.waiting_queue if request.rid == name]:
        _withdraw(scheduler, request)
    return ours


def _scores_of(request: Any, positions: int) -> Scored | None:
    """Of the last so many tokens of its prompt; None: it was not scored."""
    logprob = None if request is None else request.logprob
    if logprob is None or not logprob.input_top_logprobs_val:
        return None
    ids, values = logprob.input_top_logprobs_idx[-positions:], logprob.input_top_logprobs_val[-positions:]
    return Scored(np.asarray(ids, np.int64), np.asarray(values, np.float64))


def _order(scheduler: Any, order: Order) -> str | None:
    """Put a request into the queue, as if it had come from outside. The id it goes by; None: there is no use in it."""
    from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX
    from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    asker, scored_from = order.asker, order.scored_from
    if not _has_adapter(scheduler, asker) or order.token_ids.size >= scheduler.max_req_input_len:
        return None  # Prompt and answer may be longer than any prompt SGLang takes, which it would cut to one token.
    # SGLang's tokenizer process drops answers to such ids without a word where nobody waits for them.
    name = f"{HEALTH_CHECK_RID_PREFIX}_semblend_exact_{next(_numbers)}"
    sampling = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True, custom_params={"semblend": "off"})
    sampling.normalize(None)
    scheduler.handle_generate_request(
        TokenizedGenerateReqInput(
            rid=name,
            http_worker_ipc=asker.tokenizer,
            input_text="",
            input_ids=array("q", order.token_ids.astype(np.int64).tobytes()),
            input_embeds=None,
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=sampling,
            return_logprob=scored_from is not None,
            logprob_start_len=-1 if scored_from is None else scored_from,
            top_logprobs_num=0 if scored_from is None else LIKELIEST,
            token_ids_logprob=None,
            stream=False,
            lora_id=asker.adapter,
            **_namespace(asker),
        )
    )
    return name


def _has_adapter(scheduler: Any, asker: Asker) -> bool:
    """Whether the adapter, if there is one, was not unloaded in the meantime."""
    return asker.adapter is None or asker.adapter in scheduler.tp_worker.model_runner.lora_manager.lora_refs


def _namespace(asker: Asker) -> dict[str, str | None]:
    extra_key, salt = asker.key.extra_key, asker.key.cache_salt
    if extra_key is not None and asker.adapter is not None:
        extra_key = extra_key.removesuffix(asker.adapter)  # SGLang appends it again.
    # An older SGLang does not know the salt.
    return {"extra_key": extra_key} if salt is None else {"extra_key": extra_key, "cache_salt": salt}


def _withdraw(scheduler: Any, request: Any) -> None:
    """It was not admitted."""
    scheduler.waiting_queue.remove(request)
    release = getattr(scheduler, "_release_aborted_request", None)  # What newer versions have begun to fetch for it.
    if release is not None:
        release(request)
    scheduler.tree_cache.semblend.leave_queue(request.rid)


BACKGROUND_HOOKS = {"sglang.srt.managers.scheduler.Scheduler.on_idle": on_idle}
