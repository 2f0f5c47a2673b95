"""The best cover of a prompt: which of the overlapping runs to use where.

A sweep from left to right that always takes the run reaching farthest covers every coverable token with the fewest
pieces. Two refinements: tokens too few to be worth a seam are not chased, and among runs that reach about equally far
the one from the same donor as before, then a resident, then a newer donor wins. Where runs overlap by little, the
pieces before one that is too short move to the left to make room for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from semblend_core.discovery.runs import Run

ABOUT_EQUAL = 1 / 128
"""Share of what a piece could add that a preferred donor may cost."""

Preference: TypeAlias = Callable[[int], tuple[int, int]]
"""(residency, recency) of a donor by its serial; larger is better."""
Piece: TypeAlias = tuple[int, int, Run]
"""First position, end, and the run that the piece is cut from."""


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
    ordered = sorted(run for run in runs if run.end - start >= worth)
    swept = ordered if _apart(ordered) else _sweep(ordered, start, worth, preference)
    pieces = _aligned(_long_enough(swept, min_span, start), alignment, min_span, start)
    if max_spans is not None and len(pieces) > max_spans:
        pieces = sorted(sorted(pieces, key=lambda run: run.start - run.end)[:max_spans])
    return pieces


def _apart(ordered: list[Run]) -> bool:
    """Whether no two runs overlap: then the sweep would take them all, as after edits of one donor's text."""
    position = 0
    for run in ordered:
        if run.start < position:
            return False
        position = run.end
    return True


def _sweep(ordered: list[Run], position: int, worth: int, preference: Preference) -> list[Run]:
    """The runs to use, in order; the next step decides where one ends and the next begins."""
    preferences = {donor: preference(donor) for donor in {run.donor for run in ordered}}
    chosen: list[Run] = []
    open_runs: list[Run] = []
    previous_donor = -1
    upcoming, total = 0, len(ordered)
    while True:
        while upcoming < total and ordered[upcoming].start < position + worth:
            open_runs.append(ordered[upcoming])
            upcoming += 1
        open_runs = [r for r in open_runs if r.end - (r.start if r.start > position else position) >= worth]
        if not open_runs:
            if upcoming == total:
                return chosen
            position = ordered[upcoming].start
            continue
        best = open_runs[0]
        if len(open_runs) > 1:
            best = _farthest(open_runs, position, worth, preferences, previous_donor)
        chosen.append(best)
        position, previous_donor = best.end, best.donor


def _farthest(
    runs: list[Run], position: int, worth: int, preferences: dict[int, tuple[int, int]], previous_donor: int
) -> Run:
    # Tokens skipped to get to a run's start are tokens lost.
    reaches = [run.end - run.start + position if run.start > position else run.end for run in runs]
    farthest = max(reaches)
    good_enough = farthest - min(worth - 1, int((farthest - position) * ABOUT_EQUAL))
    best, best_rank = runs[0], None
    for run, reach in zip(runs, reaches, strict=True):
        if reach >= good_enough:
            rank = (run.donor == previous_donor, preferences[run.donor], reach, -run.start)
            if best_rank is None or rank > best_rank:
                best, best_rank = run, rank
    return best


def _long_enough(swept: list[Run], min_span: int, lowest: int) -> list[Piece]:
    """The pieces of at least ``min_span``, none before ``lowest``.

    A short piece grows into those before it; where there is no room for all, the longer of the last two stays.
    """
    kept: list[Piece] = []
    for run in swept:
        free_from = kept[-1][1] if kept else lowest
        start = max(run.start, free_from)
        if run.end - start < min_span:
            start = max(run.start, lowest, run.end - min_span)
        if run.end - start < min_span:
            continue
        if start < free_from and not _make_room(kept, start, min_span, lowest):
            alone = max(run.start, kept[-2][1] if len(kept) > 1 else lowest)
            if run.end - alone > kept[-1][1] - kept[-1][0]:
                kept[-1] = (alone, run.end, run)
            continue
        kept.append((start, run.end, run))
    return kept


def _make_room(kept: list[Piece], end: int, min_span: int, lowest: int) -> bool:
    """Let the pieces end at ``end``: each that gets too short begins earlier. False, changing nothing: they cannot."""
    moved: list[Piece] = []
    for first, before_end, run in reversed(kept):
        if before_end <= end:
            break
        first = min(first, end - min_span)
        if first < max(run.start, lowest):
            return False
        moved.append((first, end, run))
        end = first
    kept[len(kept) - len(moved) :] = reversed(moved)
    return True


def _aligned(pieces: list[Piece], alignment: int, min_span: int, lowest: int) -> list[Run]:
    if alignment == 1:  # Nothing to round: the pieces are long enough and apart already.
        return [Run(first, end, run.donor, run.donor_start + first - run.start) for first, end, run in pieces]
    aligned: list[Run] = []
    taken = lowest
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
