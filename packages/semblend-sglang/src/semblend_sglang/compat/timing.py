"""What the cost gate is told of SGLang's batches, and whose costs they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from semblend_core import AuditSink, Settings, Span
from semblend_core.serving import CostGate, Part, contain
from semblend_core.serving.tree import Load
from semblend_core.serving.worker import ForwardEnds, forward_ends_on
from semblend_sglang.compat.support import resolved
from semblend_sglang.compat.versions import installed_version
from semblend_sglang.scheduler.side import Side

Original = Callable[..., Any]

END = "semblend_forward_end"
ENDS = "semblend_forward_ends"
"""Where a scheduler keeps what tells when its forwards end."""


def next_batch(original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Scheduling begins, also where there is nothing to schedule."""
    side: Side | None = getattr(scheduler.tree_cache, "semblend", None)
    if side is not None:
        side.operator.turns.take()
        side.round.begin()
        if side.costs.is_on:
            side.costs.begin_step()
    return original(scheduler, *args, **kwargs)


def run_batch(original: Original, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """The batch is made. With overlapped scheduling this returns before its forward has ended."""
    side = _timing_side(scheduler)
    if side is None:
        return original(scheduler, batch, *args, **kwargs)
    side.landing.started.clear()
    own = contain("looking at a batch", _own_parts, side, batch)
    result = original(scheduler, batch, *args, **kwargs)
    contain("marking the end of a batch", _mark_end, scheduler, result)
    told = None if own is None else contain("looking at a batch", _with_reuse, own, side.landing.started)
    side.costs.step_scheduled(result, *(told or ()))
    return result


def process_result(original: Original, scheduler: Any, batch: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
    """SGLang waits in here for the forward, and sends what it has computed."""
    done = original(scheduler, batch, result, *args, **kwargs)
    side: Side | None = getattr(scheduler.tree_cache, "semblend", None)
    if side is not None:
        if side.costs.is_on:
            side.costs.step_finished(result, contain("the end of a batch", _ended, scheduler, result))
        side.capturing.catch_up()
    return done


TIMING_HOOKS = {
    "sglang.srt.managers.scheduler.Scheduler.get_next_batch_to_run": next_batch,
    "sglang.srt.managers.scheduler.Scheduler.run_batch": run_batch,
    "sglang.srt.managers.scheduler.Scheduler.process_batch_result": process_result,
}


def _mark_end(scheduler: Any, result: Any) -> None:
    setattr(result, END, _ends_of(scheduler).mark())


def _ended(scheduler: Any, result: Any) -> float | None:
    return _ends_of(scheduler).ended(getattr(result, END, None))


def _ends_of(scheduler: Any) -> ForwardEnds:
    ends: ForwardEnds | None = getattr(scheduler, ENDS, None)
    if ends is None:
        ends = contain("the clock of forwards", _forward_ends, scheduler) or ForwardEnds(None)
        setattr(scheduler, ENDS, ends)
    return ends


def _forward_ends(scheduler: Any) -> ForwardEnds:
    """Of nobody who can tell, where SGLang waits for each batch, or where it computes cannot be told."""
    if not scheduler.enable_overlap:
        return ForwardEnds(None)
    device, stream = torch.device(scheduler.server_args.device), getattr(scheduler, "forward_stream", None)
    if device.type == "cpu":
        return forward_ends_on(device)
    return forward_ends_on(stream.device, stream) if isinstance(stream, torch.cuda.Stream) else ForwardEnds(None)


def _timing_side(scheduler: Any) -> Side | None:
    side: Side | None = getattr(scheduler.tree_cache, "semblend", None)
    return side if side is not None and side.costs.is_on else None


def _own_parts(side: Side, batch: Any) -> list[Part] | None:
    """What the batch's requests compute by themselves; None: it is not looked at."""
    requests = batch.reqs
    if not batch.forward_mode.is_extend():
        if not side.costs.wants(len(requests), len(requests)):
            return None
        return [Part(len(req.origin_input_ids) + len(req.output_ids), 1, req.rid, decodes=True) for req in requests]
    # With mixed chunks some of an extend's requests decode. A prompt's last token alone is a prefill all the same.
    sizes = zip(requests, batch.prefix_lens, batch.extend_lens, strict=True)
    return [
        Part(int(before), int(tokens), req.rid, decodes=tokens == 1 and bool(req.output_ids))
        for req, before, tokens in sizes
    ]


def _with_reuse(own: list[Part], loads: dict[str, Load]) -> tuple[list[Part], dict[str, int], int]:
    """The same with rows, those of a first forward too; what was moved for each request, and corrected."""
    rows = [
        Part(start, end - start, request_id, is_row=True)
        for request_id, load in loads.items()
        for start, end in (*load.claim.rows, *load.probed)
    ]
    again = [part for part in own if part.request_id in loads and loads[part.request_id].probed]
    moved = {request_id: sum(span.length for span in load.claim.spans) for request_id, load in loads.items()}
    corrected = sum(moved[request_id] for request_id, load in loads.items() if load.claim.correction is not None)
    return own + rows + again, moved, corrected


def cost_gate_of(
    ctx: Any,
    settings: Settings,
    audit: AuditSink | None,
    step_tokens: int,
    step_rows: int,
    spending: Callable[[Sequence[Span]], float],
) -> CostGate:
    arguments, dtype = resolved(ctx.server_args), ctx.params.token_to_kv_pool_allocator.get_kvcache().dtype
    device = str(arguments.device)
    identity = {
        "engine": "sglang",
        "version": str(installed_version()),
        "model": str(arguments.model_path),
        "config": str(ctx.model_config.hf_config),
        "dtype": str(dtype),
        "quantization": str(arguments.quantization),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "ranks": str(arguments.tp_size),
        "graphs": str(not arguments.disable_cuda_graph),
    }
    return CostGate(settings, step_tokens, identity, audit, spending=spending, probes_apart=False, step_rows=step_rows)
