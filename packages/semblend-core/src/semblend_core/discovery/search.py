"""The order in which diagonals are compared: enough to find every run, and no more.

Documents that many donors share give every donor the same diagonals. Comparing the strongest first and skipping those
that could add nothing to the runs already verified keeps the work near that of a single donor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from semblend_core.contract import TokenIds
from semblend_core.discovery.runs import Diagonals, DonorColumns, Run, run_along, verified_runs

SINGLY = 6
"""Diagonals compared one by one, as plain slices, before the rest is compared in bulk."""
FEW = 32
"""Diagonals that are cheaper compared than thought about."""


def search_runs(
    query: TokenIds,
    donors: DonorColumns,
    diagonals: Diagonals,
    *,
    gram: int,
    margin: int,
    min_run: int,
    known: Sequence[Run] = (),
) -> list[Run]:
    """Maximal runs along the diagonals, which come strongest first: all of at least ``min_run``, some shorter.

    ``known`` runs were found before and are part of the answer.
    """
    found: list[Run] = [*known]
    if diagonals.hits.size > SINGLY:
        diagonals = diagonals.take(_may_reach(query, donors, diagonals, gram, min_run))
    limits = {"gram": gram, "margin": margin}
    budget = 8 * query.size + 4096
    if known:  # After a first search what is left is many weak diagonals.
        found += verified_runs(query, donors, diagonals, **limits, max_compared=budget)
    else:
        singly = min(SINGLY, diagonals.hits.size)
        for i in range(singly):
            if not _explained(query, donors, diagonals, i, found, gram):
                found += run_along(query, donors, diagonals, i, **limits)
        if singly == diagonals.hits.size:
            return [*dict.fromkeys(found)]
        rest = diagonals.take(np.arange(singly, diagonals.hits.size))
        rest = rest.take(unexplained(query, donors, rest, found, gram))
        if rest.hits.size > FEW:
            # Many at once mean text shared by several donors: one of them may explain the others.
            from_strongest = rest.donor == _strongest_donor(rest)
            found += verified_runs(query, donors, rest.take(from_strongest), **limits, max_compared=budget)
            rest = rest.take(~from_strongest)
            rest = rest.take(unexplained(query, donors, rest, found, gram))
        found += verified_runs(query, donors, rest, **limits, max_compared=budget)
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


def outside(positions: npt.NDArray[np.int64], runs: Sequence[Run], gram: int) -> npt.NDArray[np.bool_]:
    """Which hit positions begin a k-gram that lies in none of the runs."""
    if not runs:
        return np.ones(positions.size, np.bool_)
    if len(runs) == 1:
        return np.asarray((positions < runs[0].start) | (positions > runs[0].end - gram))
    edges = np.array(sorted((run.start, run.end) for run in runs))
    # Of the runs that start at or before a position, the farthest end decides.
    farthest = np.maximum.accumulate(edges[:, 1])
    before = np.searchsorted(edges[:, 0], positions, side="right")
    return np.asarray((before == 0) | (farthest[np.maximum(before, 1) - 1] < positions + gram))


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
    bounds = np.array([(run.start, run.end) for run in runs])
    inside: npt.NDArray[np.bool_] = (diagonals.first[:, None] >= bounds[:, 0]) & (
        diagonals.last[:, None] + gram <= bounds[:, 1]
    )
    around = bounds[inside.argmax(axis=1)]
    ends_there = _differs(query, donors, diagonals, around[:, 0] - 1) & _differs(query, donors, diagonals, around[:, 1])
    explained = np.logical_or.reduce(inside, axis=1) & ends_there
    return np.asarray(np.logical_not(explained).nonzero()[0])


def _differs(
    query: TokenIds, donors: DonorColumns, diagonals: Diagonals, positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Whether query and donor differ at one position of each diagonal; beyond an end of either they do."""
    there = positions + diagonals.shift
    beyond = (positions < 0) | (positions >= query.size) | (there < 0) | (there >= donors.length[diagonals.donor])
    theirs = donors.arena.take(donors.start[diagonals.donor] + there, mode="clip")
    return np.asarray(beyond | (query.take(positions, mode="clip") != theirs))


def _strongest_donor(diagonals: Diagonals) -> int:
    donors, inverse = np.unique(diagonals.donor, return_inverse=True)
    return int(donors[np.argmax(np.bincount(inverse, weights=diagonals.hits))])
