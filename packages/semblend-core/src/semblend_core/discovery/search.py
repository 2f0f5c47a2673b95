"""The order in which diagonals are compared: enough to find every run, and no more.

Documents that many donors share give every donor the same diagonals. Comparing the strongest first and skipping those
whose hits a verified run already explains keeps the work near that of a single donor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from semblend_core.contract import TokenIds
from semblend_core.discovery.runs import Diagonals, DonorColumns, Run, run_along, verified_runs

SINGLY = 6
"""Diagonals compared one by one, as plain slices, before the rest is compared in bulk."""


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
    """Maximal runs of at least ``min_run`` tokens along the diagonals, which come strongest first.

    ``known`` runs were found before and are part of the answer. A diagonal is skipped when all its hits lie inside one
    run of another: it could add no more than ``margin`` tokens at either end of that run. Where those could make a
    short run long enough, nothing is skipped.
    """
    found: list[Run] = [*known]
    limits = {"gram": gram, "margin": margin, "min_run": gram}

    def explaining() -> list[Run]:
        return [run for run in found if not min_run - 2 * margin <= run.end - run.start < min_run]

    budget = 8 * query.size + 4096
    if known:  # After a first search what is left is many weak diagonals.
        rest = diagonals.take(_unexplained(diagonals, 0, explaining(), gram))
        found += verified_runs(query, donors, rest, **limits, max_compared=budget)
    else:
        singly = min(SINGLY, diagonals.hits.size)
        for i in range(singly):
            if not _inside_one(explaining(), int(diagonals.first[i]), int(diagonals.last[i]) + gram):
                found += run_along(query, donors, diagonals, i, **limits)
        rest = diagonals.take(_unexplained(diagonals, singly, explaining(), gram))
        if rest.hits.size:
            from_strongest = rest.donor == _strongest_donor(rest)
            found += verified_runs(query, donors, rest.take(from_strongest), **limits, max_compared=budget)
            others = rest.take(~from_strongest)
            others = others.take(_unexplained(others, 0, explaining(), gram))
            found += verified_runs(query, donors, others, **limits, max_compared=budget)
    # Two diagonals on one line may lead to the same run.
    return [run for run in dict.fromkeys(found) if run.end - run.start >= min_run]


def unexplained(positions: npt.NDArray[np.int64], runs: list[Run], gram: int) -> npt.NDArray[np.bool_]:
    """Which hit positions begin a k-gram that lies in none of the runs."""
    if not runs:
        return np.ones(positions.size, np.bool_)
    if len(runs) == 1:
        return np.asarray((positions < runs[0].start) | (positions > runs[0].end - gram))
    edges = np.array(sorted((run.start, run.end) for run in runs))
    # Of the runs that start at or before a position, the farthest end decides.
    farthest = np.maximum.accumulate(edges[:, 1])
    before = np.searchsorted(edges[:, 0], positions, side="right")
    outside: npt.NDArray[np.bool_] = (before == 0) | (farthest[np.maximum(before, 1) - 1] < positions + gram)
    return outside


def _inside_one(runs: list[Run], first: int, end: int) -> bool:
    return any(run.start <= first and end <= run.end for run in runs)


def _unexplained(diagonals: Diagonals, skip: int, runs: list[Run], gram: int) -> npt.NDArray[np.int64]:
    first, end = diagonals.first[skip:], diagonals.last[skip:] + gram
    if not first.size or not runs:
        return np.arange(skip, skip + first.size)
    bounds = np.array([(run.start, run.end) for run in runs])
    inside: npt.NDArray[np.bool_] = (first[:, None] >= bounds[:, 0]) & (end[:, None] <= bounds[:, 1])
    open_: npt.NDArray[np.bool_] = np.logical_not(np.logical_or.reduce(inside, axis=1))
    return skip + open_.nonzero()[0]


def _strongest_donor(diagonals: Diagonals) -> int:
    donors, inverse = np.unique(diagonals.donor, return_inverse=True)
    return int(donors[np.argmax(np.bincount(inverse, weights=diagonals.hits))])
