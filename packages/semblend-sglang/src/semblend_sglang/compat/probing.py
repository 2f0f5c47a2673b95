"""Rows that are chosen by where a question looks: a first small forward shows it, right in front of the real one.

Both run in one of SGLang's rounds, so nothing can happen to a request between them. The scheduler waits for the first:
the rows of the second follow from it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from semblend_core import ProbeEnd
from semblend_core.recompute import Scores
from semblend_core.serving import Claim, Rows, contain, rows_by_scores
from semblend_core.serving.tree import Load
from semblend_sglang.scheduler.side import Side
from semblend_sglang.worker.looking import Look, looking, of_all_ranks
from semblend_sglang.worker.sequences import MARK, as_if_alone, as_sequences

logger = logging.getLogger(__name__)

MakeBatch = Callable[[], Any]
"""Makes SGLang's forward batch of its ScheduleBatch, as that is shown."""


def choose_rows(side: Side, batch: Any, loads: dict[int, Load], make: MakeBatch, runner: Any) -> dict[int, Load]:
    """``loads`` of the batch's requests, by index: those that are to be probed come back with their rows."""
    asking = {index: load for index, load in loads.items() if load.claim.probing is not None}
    if not asking:
        return loads
    whole = {index: load for index, load in asking.items() if _reaches_end(batch, index, load)}
    scores = contain("a probe", _probe, side, batch, whole, make, runner) or {} if whole else {}
    spare = _spare_places(side, batch, loads) // len(asking)
    return loads | {
        index: _settle(side, batch, index, load, scores.get(index), len(load.claim.rows) + spare)
        for index, load in asking.items()
    }


def _reaches_end(batch: Any, index: int, load: Load) -> bool:
    """Whether the forward computes its question. A prompt in pieces does that later."""
    return bool(batch.prefix_lens[index] + batch.extend_lens[index] == load.token_ids.size)


def _probe(side: Side, batch: Any, asking: dict[int, Load], make: MakeBatch, runner: Any) -> dict[int, Scores | None]:
    """How much the question of each of these requests attends to each of its tokens."""
    prepared = contain("preparing a probe", _prepare, side, batch, asking, make)
    if not side.all_can(prepared is not None) or prepared is None:
        return {}
    forward_batch, looks = prepared
    ran = contain("a probe", _run, runner, forward_batch, list(looks.values()))
    return _scores(side, looks, bool(ran))


def _run(runner: Any, forward_batch: Any, looks: list[Look]) -> bool:
    with looking(looks):
        runner.forward(forward_batch)
    return True


def _prepare(side: Side, batch: Any, asking: dict[int, Load], make: MakeBatch) -> tuple[Any, dict[int, Look]]:
    """A forward of what no span covers, and who looks at it."""
    gaps = [_gaps(load.claim) for load in asking.values()]
    prompts = {at: load.token_ids for at, load in enumerate(asking.values())}
    with as_if_alone(batch, list(asking)):
        lengths = list(batch.extend_lens)
        with as_sequences(batch, {at: rows for at, rows in enumerate(gaps) if rows}, prompts) as view:
            forward_batch = make()
    setattr(forward_batch, MARK, view)
    forward_batch.return_logprob = False  # Those that are asked for come from the forward behind it.
    looks: dict[int, Look] = {}
    tokens = 0
    for (index, load), rows, length in zip(asking.items(), gaps, lengths, strict=True):
        tokens += sum(end - start for start, end in rows)
        looks[index] = Look(load.claim, batch.tree_cache.semblend_row(batch.reqs[index]), side.pool, tokens)
        tokens += length
    return forward_batch, looks


def _scores(side: Side, looks: dict[int, Look], ran: bool) -> dict[int, Scores | None]:
    """What all heads have seen. Each rank has some of them."""
    mine = {index: contain("reading what a probe saw", look.scores) if ran else None for index, look in looks.items()}
    told = [mine] if side.ranks is None else side.ranks.exchange(mine)
    return {index: of_all_ranks([seen[index] for seen in told]) for index in looks}


def _gaps(claim: Claim) -> Rows:
    """What no span covers, inside the claim: the first forward computes that, and all behind the claim."""
    assert claim.probing is not None
    return tuple((start, min(end, claim.end)) for start, end in claim.probing.rows if start < claim.end)


def _spare_places(side: Side, batch: Any, loads: dict[int, Load]) -> int:
    """Sequences that the batch could have besides its requests and the rows that they have without a probe."""
    taken = len(batch.reqs) + sum(len(load.claim.rows) for load in loads.values())
    return max(0, side.limits.sequences - taken)


def _settle(side: Side, batch: Any, index: int, load: Load, scores: Scores | None, most_rows: int) -> Load:
    """Its rows by ``scores``; without, or where they cannot be, those that its tier has without a probe."""
    chosen = None
    if scores is not None:
        chosen = contain("choosing rows", rows_by_scores, load.claim, scores, most_rows)
    request, tree = batch.reqs[index], batch.tree_cache
    settled = side.landing.settle(request, chosen or load.claim.unprobed(), () if scores is None else _gaps(load.claim))
    # SGLang has counted what is cached already.
    request.cached_tokens += tree.semblend_not_shown(load) - tree.semblend_not_shown(settled)
    contain("counting a probe", side.probe_ended, ProbeEnd.FAILED if chosen is None else ProbeEnd.CHOSE)
    return settled
