"""The order in which diagonals are compared: enough to find every run, and no more.

Documents that many donors share give every donor the same diagonals. Comparing the strongest first and skipping those
that could add nothing to the runs already verified keeps the work near that of a single donor.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from semblend_core.contract import TokenIds
from semblend_core.discovery.runs import Diagonals, DonorColumns, Run, run_along, verified_runs

SINGLY = 6
"""Diagonals compared one by one, as plain slices, before the rest is compared in bulk."""
FEW = 32
"""Diagonals that are cheaper compared than thought about."""
ROUNDS = 3
"""In which the strongest diagonals go before the others, before all that are left are compared."""


class Patience:
    """How long it is worth looking for more than what was found."""

    def __init__(self, until: float | None = None) -> None:
        """``until``: by ``time.perf_counter``; None: for ever."""
        self._until = until
        self.ended = False
        """Something was left out for it."""

    def is_over(self) -> bool:
        """Ask where something is left out if it is."""
        self.ended = self._until is not None and time.perf_counter() > self._until
        return self.ended


ENDLESS = Patience()


def search_runs(
    query: TokenIds,
    donors: DonorColumns,
    diagonals: Diagonals,
    *,
    gram: int,
    margin: int,
    min_run: int,
    known: Sequence[Run] = (),
    patience: Patience = ENDLESS,
) -> list[Run]:
    """Maximal runs along the diagonals, which come strongest first: all of at least ``min_run``, some shorter.

    ``known`` runs were found before and are part of the answer. So are those of the first rounds alone, where
    ``patience`` ends.
    """
    found: list[Run] = [*known]
    if diagonals.hits.size > SINGLY:
        diagonals = diagonals.take(_may_reach(query, donors, diagonals, gram, min_run))
    limits = {"gram": gram, "margin": margin}
    if not known or diagonals.hits.size <= SINGLY:  # After a first search what is left may be many weak diagonals.
        singly = min(SINGLY, diagonals.hits.size)
        for i in range(singly):
            if not _explained(query, donors, diagonals, i, found, gram):
                found += run_along(query, donors, diagonals, i, **limits)
        if singly == diagonals.hits.size:
            return [*dict.fromkeys(found)]
        diagonals = diagonals.take(np.arange(singly, diagonals.hits.size))
        diagonals = diagonals.take(unexplained(query, donors, diagonals, found, gram))
    budget = 8 * query.size + 4096
    for _ in range(ROUNDS):
        if diagonals.hits.size <= FEW:
            break
        if patience.is_over():
            return [*dict.fromkeys(found)]
        # Many at once mean text that several donors share: the strongest at each place may explain the others there.
        _, strongest = np.unique(diagonals.first, return_index=True)
        found += verified_runs(query, donors, diagonals.take(np.sort(strongest)), **limits, max_compared=budget)
        diagonals = diagonals.take(np.delete(np.arange(diagonals.hits.size), strongest))
        diagonals = diagonals.take(unexplained(query, donors, diagonals, found, gram))
    found += verified_runs(query, donors, diagonals, **limits, max_compared=budget)
    return [*dict.fromkeys(found)]  # Two diagonals on one line may lead to the same run.


def _may_reach(
    query: TokenIds, donors: DonorColumns, diagonals: Diagonals, gram: int, min_run: int
) -> npt.NDArray[np.bool_]:
    """Which diagonals may hold a run of ``min_run`` tokens, judged by four tokens of each.

    What such a run has beyond the hits lies to one side by half at least: there, query and donor agree both right
    beside the hits and that far away.
    """
    end = diagonals.last + gram
    missing = min_run - (end - diagonals.first)
    half = (missing + 1) // 2
    left = _differs(query, donors, diagonals, diagonals.first - 1)
    left |= _differs(query, donors, diagonals, diagonals.first - half)
    right = _differs(query, donors, diagonals, end)
    right |= _differs(query, donors, diagonals, end + half - 1)
    return np.asarray((missing <= 0) | ~(left & right))


def near_gaps(
    positions: npt.NDArray[np.int64], runs: Sequence[Run], gram: int, margin: int, size: int
) -> npt.NDArray[np.bool_]:
    """Which hit positions begin a k-gram that is outside the runs, or no more than ``margin`` from a token that is.

    A run that covers such a token, and is long enough to be found at all, has a hit this near. ``size``: the query's.
    """
    if not runs:
        return np.ones(positions.size, np.bool_)
    inner = [
        (start + (margin if start > 0 else 0), end - (margin if end < size else 0)) for start, end in _joined(runs)
    ]
    if len(inner) == 1:
        return np.asarray((positions < inner[0][0]) | (positions > inner[0][1] - gram))
    starts, ends = np.array(inner).T
    before = np.searchsorted(starts, positions, side="right")
    return np.asarray((before == 0) | (ends[np.maximum(before, 1) - 1] < positions + gram))


def _joined(runs: Sequence[Run]) -> list[list[int]]:
    """First and end of every part of the query that runs cover without a gap, in order."""
    parts: list[list[int]] = []
    for start, end in sorted((run.start, run.end) for run in runs):
        if parts and start <= parts[-1][1]:
            parts[-1][1] = max(parts[-1][1], end)
        else:
            parts.append([start, end])
    return parts


def _explained(
    query: TokenIds, donors: DonorColumns, diagonals: Diagonals, i: int, runs: Sequence[Run], gram: int
) -> bool:
    """The opposite of ``unexplained`` for a single diagonal, without arrays."""
    first, end = int(diagonals.first[i]), int(diagonals.last[i]) + gram
    around = next((run for run in runs if run.start <= first and end <= run.end), None)
    if around is None:
        return False
    shift, donor = int(diagonals.shift[i]), int(diagonals.donor[i])
    start, length = int(donors.start[donor]), int(donors.length[donor])
    for position in (around.start - 1, around.end):
        there = position + shift
        within = 0 <= position < query.size and 0 <= there < length
        if within and query[position] == donors.arena[start + there]:
            return False
    return True


def unexplained(
    query: TokenIds, donors: DonorColumns, diagonals: Diagonals, runs: Sequence[Run], gram: int
) -> npt.NDArray[np.int64]:
    """Which diagonals may hold a run that reaches beyond those found.

    One whose hits all lie inside a run, and whose donor differs from the query right before and right after that run,
    can hold nothing more there.
    """
    if not diagonals.hits.size or not runs:
        return np.arange(diagonals.hits.size)
    starts, ends = np.array(sorted({(run.start, run.end) for run in runs})).T
    # Of the runs that begin before a diagonal's hits, only the one that reaches furthest: there may be thousands each.
    reaches_further = np.append(True, ends[1:] > np.maximum.accumulate(ends)[:-1])
    furthest = np.maximum.accumulate(np.where(reaches_further, np.arange(ends.size), 0))
    begun = np.searchsorted(starts, diagonals.first, side="right")
    around = furthest[np.maximum(begun, 1) - 1]
    explained = (begun > 0) & (diagonals.last + gram <= ends[around])
    explained &= _differs(query, donors, diagonals, starts[around] - 1)
    explained &= _differs(query, donors, diagonals, ends[around])
    return np.asarray(np.logical_not(explained).nonzero()[0])


def _differs(
    query: TokenIds, donors: DonorColumns, diagonals: Diagonals, positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Whether query and donor differ at one position of each diagonal; beyond an end of either they do."""
    there = positions + diagonals.shift
    beyond = (positions < 0) | (positions >= query.size) | (there < 0) | (there >= donors.length[diagonals.donor])
    theirs = donors.arena.take(donors.start[diagonals.donor] + there, mode="clip")
    return np.asarray(beyond | (query.take(positions, mode="clip") != theirs))
