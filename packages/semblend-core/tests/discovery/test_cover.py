"""The cover is a choice of pieces that an engine can carry out, close to what a slower choice would get."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core.discovery import Run, best_cover

WORTH = 16


def no_preference(donor: int) -> tuple[int, int]:
    return 1, donor


def cover(runs: Sequence[Run], min_span: int, start: int = 0, alignment: int = 1, **more: int) -> list[Run]:
    return best_cover(
        runs,
        min_span=min_span,
        worth=min(WORTH, min_span),
        preference=no_preference,
        start=start,
        alignment=alignment,
        **more,
    )


@st.composite
def run_sets(draw: st.DrawFn, min_length: int) -> list[Run]:
    runs = []
    for _ in range(draw(st.integers(0, 12))):
        start = draw(st.integers(0, 400))
        length = draw(st.integers(min_length, 300))
        runs.append(Run(start, start + length, draw(st.integers(1, 4)), draw(st.integers(0, 99))))
    return runs


@settings(deadline=None, max_examples=400)
@given(st.data(), st.sampled_from([16, 20, 64]), st.integers(0, 150), st.sampled_from([1, 1, 8, 16, 32]))
def test_pieces_are_long_enough_apart_aligned_and_inside_their_runs(
    data: st.DataObject, min_span: int, start: int, alignment: int
) -> None:
    runs = data.draw(run_sets(min_length=1))
    most = data.draw(st.one_of(st.none(), st.integers(1, 3)))
    pieces = best_cover(
        runs,
        min_span=min_span,
        worth=min(WORTH, min_span),
        preference=no_preference,
        start=start,
        alignment=alignment,
        max_spans=most,
    )
    assert all(before.end <= after.start for before, after in pairwise(pieces))
    assert most is None or len(pieces) <= most
    for piece in pieces:
        assert piece.length >= min_span
        assert piece.start >= start
        assert piece.start % alignment == piece.end % alignment == 0
        assert any(
            run.donor == piece.donor
            and run.start <= piece.start
            and piece.end <= run.end
            and run.donor_start - run.start == piece.donor_start - piece.start
            for run in runs
        )


def greedy_longest_first(runs: Sequence[Run], start: int, min_span: int) -> list[tuple[int, int]]:
    taken: list[tuple[int, int]] = []
    while True:
        edges = [start, *(position for piece in sorted(taken) for position in piece), 10**9]
        free = list(zip(edges[0::2], edges[1::2], strict=True))
        clipped = [(max(run.start, a), min(run.end, b)) for run in runs for a, b in free]
        longest = max(clipped, key=lambda piece: piece[1] - piece[0], default=(0, 0))
        if longest[1] - longest[0] < min_span:
            return taken
        taken.append(longest)


@settings(deadline=None, max_examples=400)
@given(st.data(), st.sampled_from([16, 20, 64]), st.integers(0, 100))
def test_the_cover_is_near_what_the_longest_first_would_get(data: st.DataObject, min_span: int, start: int) -> None:
    """Slack: per piece of the other's, one piece given up for want of room and one too small to be chased."""
    runs = data.draw(run_sets(min_length=min_span))
    greedy = greedy_longest_first(runs, start, min_span)
    covered = sum(piece.length for piece in cover(runs, min_span, start))
    assert covered >= sum(end - begin for begin, end in greedy) - len(greedy) * (min_span + WORTH)


@settings(deadline=None, max_examples=200)
@given(st.data(), st.sampled_from([16, 64]))
def test_runs_that_do_not_overlap_are_all_used_whole(data: st.DataObject, min_span: int) -> None:
    position, runs = 0, []
    for _ in range(data.draw(st.integers(1, 8))):
        position += data.draw(st.integers(0, 30))
        length = data.draw(st.integers(min_span, 200))
        runs.append(Run(position, position + length, data.draw(st.integers(1, 3)), 5))
        position += length
    assert cover(data.draw(st.permutations(runs)), min_span) == runs


def test_a_run_that_begins_before_the_exact_prefix_is_used_from_its_end_on() -> None:
    assert cover([Run(0, 200, 1, 50)], 64, start=10) == [Run(10, 200, 1, 60)]
    assert cover([Run(0, 200, 1, 50)], 64, start=10, alignment=16) == [Run(16, 192, 1, 66)]
    assert cover([Run(0, 70, 1, 0)], 64, start=10) == []


def test_of_two_runs_without_room_for_both_the_longer_stays() -> None:
    assert cover([Run(0, 64, 1, 0), Run(17, 127, 2, 0)], 64) == [Run(17, 127, 2, 0)]
    assert cover([Run(0, 110, 1, 0), Run(60, 124, 2, 0)], 64) == [Run(0, 110, 1, 0)]


def test_a_short_rest_grows_into_the_piece_before_it() -> None:
    assert cover([Run(0, 200, 1, 0), Run(150, 240, 2, 0)], 64) == [Run(0, 176, 1, 0), Run(176, 240, 2, 26)]


def test_a_few_tokens_are_not_chased() -> None:
    assert cover([Run(0, 200, 1, 0), Run(100, 210, 2, 0)], 64) == [Run(0, 200, 1, 0)]


def test_the_longest_pieces_are_kept_when_there_are_too_many() -> None:
    runs = [Run(0, 64, 1, 0), Run(100, 300, 2, 0), Run(400, 500, 3, 0)]
    assert cover(runs, 64, max_spans=2) == runs[1:]


@pytest.mark.parametrize(
    ("preferences", "chosen"),
    [
        ({1: (0, 1), 2: (0, 2), 3: (0, 3)}, 3),
        ({1: (1, 1), 2: (0, 2), 3: (0, 3)}, 1),
        ({1: (1, 1), 2: (1, 2), 3: (0, 3)}, 2),
    ],
)
def test_among_equals_a_resident_then_a_newer_donor_is_used(
    preferences: dict[int, tuple[int, int]], chosen: int
) -> None:
    runs = [Run(0, 1000 + donor, donor, 0) for donor in preferences]
    pieces = best_cover(runs, min_span=64, worth=WORTH, preference=preferences.__getitem__)
    assert [piece.donor for piece in pieces] == [chosen]


def test_the_donor_of_the_piece_before_is_used_again() -> None:
    runs = [Run(0, 100, 1, 0), Run(100, 200, 1, 300), Run(100, 200, 2, 0)]
    assert [piece.donor for piece in cover(runs, 64)] == [1, 1]


def test_a_much_longer_run_beats_every_preference() -> None:
    pieces = best_cover(
        [Run(0, 100, 1, 0), Run(0, 300, 2, 0)],
        min_span=64,
        worth=WORTH,
        preference={1: (1, 9), 2: (0, 0)}.__getitem__,
    )
    assert pieces == [Run(0, 300, 2, 0)]


def test_nothing_is_covered_by_nothing() -> None:
    assert cover([], 64) == []
    assert cover([Run(0, 100, 1, 0)], 64, start=100) == []
