"""Runs inside SGLang's scheduler process: core's provider, and notes on what happens around it.

How requests end, what the self-test finds and how much KV is held. Where a benchmark asks for it, times of SemBlend's
own steps too, the sizes of its books, and the first layer's KV of relocated tokens against the same prompt computed
cold. Only benchmarks load this.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from semblend_core import Outcome, SelfTestResult, SemBlend, Settings, create_provider
from semblend_core.serving import token_ids_of
from semblend_core.serving.tree import Loading
from semblend_core.testing import held_by
from semblend_sglang.compat import hooks
from semblend_sglang.compat.cache import SemBlendCache
from semblend_sglang.scheduler.capturing import Capturing
from semblend_sglang.scheduler.side import Side
from semblend_sglang.worker.sequences import MARK

_NOTES = Path(os.environ["SEMBLEND_BENCHMARK_INSPECTION"])
_COMPARE = Path(f"{_NOTES}.compare")
_COUNT = Path(f"{_NOTES}.count")
_TIMED = Path(f"{_NOTES}.timed")
_relocated: dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = {}


def provider() -> SemBlend:
    ours = {"SEMBLEND_SGLANG_PROVIDER", "SEMBLEND_BENCHMARK_INSPECTION"}
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    if _TIMED.exists():
        # Parts of what is timed behind them.
        Loading._gather = _timed(Loading._gather)  # type: ignore[method-assign]
        Loading._move = _timed(Loading._move)  # type: ignore[method-assign]
        hooks._make_with_rows = _timed(hooks._make_with_rows)
        SemBlendCache._keep_approximate = _timed(SemBlendCache._keep_approximate)
        Side.match = _timed(Side.match)  # type: ignore[method-assign]
        Side.admit = _noting_relocated(_timed(Side.admit))  # type: ignore[method-assign]
        Capturing.cached = _comparing(_timed(Capturing.cached))  # type: ignore[method-assign]
    _note_replays()
    Side.released = _noting_held(Side.released)  # type: ignore[method-assign]
    made = create_provider(Settings.from_env(environment), engine="sglang")
    made.report_outcome = _noting_outcome(made.report_outcome)  # type: ignore[method-assign]
    made.note_self_test = _noting_self_test(made.note_self_test)  # type: ignore[method-assign]
    made.note_probe = lambda end: note(what="probe", end=str(end))  # type: ignore[method-assign]
    return made


@functools.cache
def _notes() -> Any:
    """Open for good, and written line by line: this runs in the time that is measured."""
    return _NOTES.open("a", buffering=1)


def note(**entry: Any) -> None:
    _notes().write(json.dumps(entry) + "\n")


def _noting_outcome(method: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
    def noting(outcome: Outcome) -> None:
        reason = None if outcome.reason is None else str(outcome.reason)
        tokens = outcome.confirmed_tokens
        note(what="outcome", request=outcome.request_id, kind=str(outcome.kind), reason=reason, tokens=tokens)
        method(outcome)

    return noting


def _note_replays() -> None:
    """Which prefills replay a captured graph. Where SGLang captures none it is not asked."""
    from sglang.srt.model_executor.runner.prefill_cuda_graph_runner import PrefillCudaGraphRunner

    method = PrefillCudaGraphRunner.can_run_graph

    @functools.wraps(method)
    def noting(graphs: Any, forward_batch: Any) -> bool:
        rows = getattr(forward_batch, MARK, None) is not None
        replayed = bool(method(graphs, forward_batch))
        note(what="prefill", rows=rows, replayed=replayed, sequences=forward_batch.batch_size)
        return replayed

    PrefillCudaGraphRunner.can_run_graph = noting


def _noting_self_test(method: Callable[[SelfTestResult], None]) -> Callable[[SelfTestResult], None]:
    def noting(result: SelfTestResult) -> None:
        note(what="self_test", state=str(result.state), says=result.says)
        method(result)

    return noting


def _noting_held(method: Callable[..., Any]) -> Callable[..., Any]:
    """Slots that are neither free nor only cached, at the moment that a request is about to give its own back."""

    @functools.wraps(method)
    def noting(side: Side, request: Any) -> Any:
        tree: Any = side.tree
        allocator = tree.token_to_kv_pool_allocator
        note(what="held", tokens=int(allocator.size - allocator.available_size() - tree.evictable_size()))
        result = method(side, request)
        if _COUNT.exists():
            pinned = side.provider.stats().pinned_requests
            note(what="counted", pinned=pinned, requests=len(side.requests), books=dict(held_by(side)))
        return result

    return noting


def _timed(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        result = method(*args, **kwargs)
        took = (time.perf_counter() - started) * 1e3
        if took > 0.05:
            note(what=method.__name__, ms=round(took, 3))
        return result

    return timed


def _noting_relocated(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def noting(side: Side, life: Any) -> Any:
        slots = method(side, life)
        if slots is not None and _COMPARE.exists():
            claim = side.landing.loads[life].claim
            places = torch.cat([torch.arange(span.target_start, span.target_end) for span in claim.spans])
            keys, values = side.pool.first_layer(slots[(places - claim.start).to(slots.device)].long())
            _relocated[_name(life.token_ids)] = (places, keys.clone(), None if values is None else values.clone())
        return slots

    return noting


def _comparing(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def comparing(capturing: Capturing, asked: Any, read_slots: Callable[[], torch.Tensor]) -> Any:
        kept = _relocated.pop(_name(token_ids_of(asked.request.origin_input_ids)), None) if _relocated else None
        if kept is not None:
            places, keys, values = kept
            pool = capturing._pool
            cold_keys, cold_values = pool.first_layer(read_slots()[places.to(pool.device)])
            value_error = None if values is None or cold_values is None else _error(values, cold_values)
            note(what="compared", tokens=len(places), key_error=_error(keys, cold_keys), value_error=value_error)
        return method(capturing, asked, read_slots)

    return comparing


def _error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm().clamp(min=1e-12))


def _name(token_ids: Any) -> str:
    return hashlib.blake2b(token_ids.tobytes(), digest_size=12).hexdigest()
