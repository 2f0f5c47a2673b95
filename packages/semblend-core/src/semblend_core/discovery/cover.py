"""The best cover of a prompt: which of the overlapping runs to use where.

A sweep from left to right that always takes the run reaching farthest covers every coverable token with the fewest
pieces. Two refinements: tokens too few to be worth a seam are not chased, and among runs that reach about equally far
the one from the same donor as before, then a resident, then a newer donor wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from semblend_core.discovery.runs import Run

Preference: TypeAlias = Callable[[int], tuple[int, int]]
"""(residency, recency) of a donor by its serial; larger is better."""


def best_cover(
    runs: Iterable[Run],
    *,
    min_span: int,
    worth: int,
    preference: Preference,
    start: int = 0,
    alignment: int = 1,
    max_spans: int | None = None,
) -> list[Run]:
    """Non-overlapping pieces of ``runs``, sorted, each at least ``min_span`` tokens.

    ``worth``: fewest newly covered tokens that justify one more piece. ``start``: positions before it are taken.
    ``alignment``: piece starts and ends are multiples of it. ``max_spans``: the longest so many are kept.
    """
    pieces = _sweep(sorted(run for run in runs if run.end - start >= worth), start, worth, preference)
    pieces = _aligned(_long_enough(pieces, min_span), alignment, min_span)
    if max_spans is not None and len(pieces) > max_spans:
        longest = sorted(pieces, key=lambda run: run.start - run.end)[:max_spans]
        pieces = sorted(longest)
    return pieces


def _sweep(ordered: list[Run], position: int, worth: int, preference: Preference) -> list[tuple[int, Run]]:
    """Pairs of (first position used, run): each run is used up to its end or the next piece's start."""
    pieces: list[tuple[int, Run]] = []
    open_runs: list[Run] = []
    upcoming = 0
    while True:
        while upcoming < len(ordered) and ordered[upcoming].start < position + worth:
            open_runs.append(ordered[upcoming])
            upcoming += 1
        open_runs = [run for run in open_runs if run.end - max(position, run.start) >= worth]
        if not open_runs:
            if upcoming == len(ordered):
                return pieces
            position = ordered[upcoming].start
            continue
        best = _farthest(open_runs, position, worth, preference, pieces[-1][1] if pieces else None)
        pieces.append((max(position, best.start), best))
        position = best.end


def _farthest(runs: list[Run], position: int, worth: int, preference: Preference, previous: Run | None) -> Run:
    if len(runs) == 1:
        return runs[0]

    def reach(run: Run) -> int:
        return run.end - max(0, run.start - position)  # Tokens skipped to get to its start are tokens lost.

    good_enough = max(reach(run) for run in runs) - worth
    return max(
        (run for run in runs if reach(run) > good_enough),
        key=lambda run: (
            previous is not None and run.donor == previous.donor,
            preference(run.donor),
            reach(run),
            -run.start,
        ),
    )


def _long_enough(pieces: list[tuple[int, Run]], min_span: int) -> list[tuple[int, int, Run]]:
    """(first, end, run) for each piece of at least ``min_span``; a short one may grow into the piece before it."""
    kept: list[tuple[int, int, Run]] = []
    for first, run in pieces:
        start = first
        if run.end - start < min_span:
            start = max(run.start, run.end - min_span)
        if run.end - start < min_span:
            continue
        if kept and kept[-1][1] > start:
            before_first, _, before = kept[-1]
            if start - before_first < min_span:
                continue
            kept[-1] = (before_first, start, before)
        kept.append((start, run.end, run))
    return kept


def _aligned(pieces: list[tuple[int, int, Run]], alignment: int, min_span: int) -> list[Run]:
    aligned: list[Run] = []
    taken = 0
    for first, end, run in pieces:
        start = first - first % alignment
        if start < max(run.start, taken):
            start = -(-first // alignment) * alignment
        end -= end % alignment
        if end - start < min_span:
            continue
        aligned.append(Run(start, end, run.donor, run.donor_start + start - run.start))
        taken = end
    return aligned
