"""What the index reports is true and maximal; what it promises to find it finds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core.contract import TokenIds
from semblend_core.discovery import Geometry, Run, SpanIndex

CommonRuns = Callable[[TokenIds, TokenIds, int], set[tuple[int, int, int]]]
LARGE_VOCABULARY = 2**31 - 1


def random_tokens(seed: int, size: int, vocabulary: int = LARGE_VOCABULARY) -> TokenIds:
    return np.random.default_rng(seed).integers(0, vocabulary, size, dtype=np.int64, endpoint=True).astype(np.int32)


@st.composite
def patchworks(draw: st.DrawFn) -> tuple[list[TokenIds], TokenIds]:
    """Donors, and a query made of pieces of them and of new text."""
    seed = draw(st.integers(0, 2**20))
    donors = [random_tokens(seed + i, draw(st.integers(20, 300))) for i in range(draw(st.integers(1, 4)))]
    parts: list[TokenIds] = []
    for number in range(draw(st.integers(1, 4))):
        parts.append(random_tokens(seed + 100 + number, draw(st.integers(0, 40))))
        donor = donors[draw(st.integers(0, len(donors) - 1))]
        start = draw(st.integers(0, donor.size - 1))
        parts.append(donor[start : start + draw(st.integers(1, 200))])
    return donors, np.concatenate(parts)


@settings(deadline=None, max_examples=150)
@given(patchworks(), st.integers(16, 80))
def test_every_long_run_is_found_and_every_run_is_true(
    common_runs: CommonRuns,
    add: Callable[..., int],
    assert_true_runs: Callable[..., None],
    patchwork: tuple[list[TokenIds], TokenIds],
    min_span: int,
) -> None:
    donors, query = patchwork
    geometry = Geometry.for_min_span(min_span)
    assert geometry.guaranteed_run <= min_span
    index = SpanIndex(geometry)
    by_serial = {add(index, tokens): tokens for tokens in donors}
    runs = index.find(query, 0, geometry.guaranteed_run)
    assert runs is not None
    assert len(set(runs)) == len(runs)
    assert_true_runs(runs, query, by_serial, geometry.guaranteed_run)
    found = {(run.start, run.end, run.donor, run.donor_start) for run in runs}
    for serial, tokens in by_serial.items():
        for start, end, donor_start in common_runs(query, tokens, geometry.guaranteed_run):
            assert (start, end, serial, donor_start) in found


@st.composite
def shared_passages(draw: st.DrawFn) -> tuple[list[TokenIds], TokenIds]:
    """Donors that hold pieces of one text, so that they compete for the same fingerprints, and that text."""
    seed = draw(st.integers(0, 2**20))
    longest = draw(st.sampled_from([200, 1500]))  # Parts of many donors, or nearly all from one.
    whole = random_tokens(seed, draw(st.integers(60, longest + 100)))
    donors = []
    for number in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, whole.size - 1))
        piece = whole[start : start + draw(st.integers(1, longest))]
        frame = random_tokens(seed + 1 + number, 40)
        donors.append(np.concatenate([frame[:20], piece, frame[20:]]))
    return donors, whole


@settings(deadline=None, max_examples=200)
@given(shared_passages(), st.sampled_from([16, 31, 64]))
def test_what_several_donors_hold_is_found_in_one_of_them(
    common_runs: CommonRuns,
    add: Callable[..., int],
    assert_true_runs: Callable[..., None],
    passages: tuple[list[TokenIds], TokenIds],
    min_span: int,
) -> None:
    """A donor whose part another explains is skipped; that costs under a window at either end of its run."""
    donors, query = passages
    geometry = Geometry.for_min_span(min_span)
    index = SpanIndex(geometry)
    by_serial = {add(index, tokens): tokens for tokens in donors}
    runs = index.find(query, 0, min_span)
    assert runs is not None
    assert_true_runs(runs, query, by_serial, min_span)
    covered = np.zeros(query.size, np.bool_)
    for run in runs:
        covered[run.start : run.end] = True
    for tokens in donors:
        for start, end, _ in common_runs(query, tokens, min_span):
            assert covered[start + geometry.window : end - geometry.window].all()
            assert covered[start:end].any()


def test_a_short_run_of_a_newer_donor_does_not_hide_a_longer_one(add: Callable[..., int]) -> None:
    """A newer donor holds all fingerprints of a passage but too few of its tokens to be used."""
    for seed in range(100):
        document = random_tokens(seed, 70)
        index = SpanIndex(Geometry())
        older = add(index, np.concatenate([random_tokens(seed + 1000, 30), document]))
        add(
            index,
            np.concatenate([random_tokens(seed + 2000, 30), document[5:-5], random_tokens(seed + 3000, 30)]),
        )
        query = np.concatenate([random_tokens(seed + 4000, 50), document, random_tokens(seed + 5000, 50)])
        assert index.find(query, 0, 64) == [Run(50, 120, older, 30)]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=120), max_size=5),
    st.lists(st.integers(0, 3), max_size=120),
    st.sampled_from([16, 20, 31, 64]),
)
def test_runs_are_true_and_maximal_even_where_text_repeats_itself(
    add: Callable[..., int],
    assert_true_runs: Callable[..., None],
    donors: list[list[int]],
    query: list[int],
    min_span: int,
) -> None:
    index = SpanIndex(Geometry.for_min_span(min_span))
    by_serial = {add(index, tokens): np.asarray(tokens, np.int32) for tokens in donors}
    asked = np.asarray(query, np.int32)
    runs = index.find(asked, 0, 8)
    assert runs is not None
    assert_true_runs(runs, asked, by_serial, 8)
    assert index.find(asked, 0, 8) == runs
    index.check_integrity()


@pytest.mark.parametrize("min_span", [16, 17, 23, 24, 30, 31, 64, 512])
def test_a_geometry_finds_every_run_of_its_min_span(min_span: int) -> None:
    assert Geometry.for_min_span(min_span).guaranteed_run <= min_span


def test_a_geometry_that_could_not_work_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter than 16"):
        Geometry.for_min_span(15)
    for wrong in ({"gram": 12}, {"gram": 1}, {"window": 0}, {"repeats": 0}, {"query_repeats": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Geometry(**wrong)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 31])
def test_a_short_prompt_or_donor_is_no_trouble(add: Callable[..., int], size: int) -> None:
    index = SpanIndex(Geometry())
    serial = add(index, random_tokens(1, size))
    runs = index.find(random_tokens(1, size), 0, 1)
    assert runs == ([Run(0, size, serial, 0)] if size >= 16 else [])
    index.check_integrity()
    index.remove(serial)
    index.check_integrity()


def test_a_run_may_fill_query_or_donor_to_either_end(add: Callable[..., int]) -> None:
    donor = random_tokens(1, 500)
    index = SpanIndex(Geometry.for_min_span(31))
    serial = add(index, donor)
    for start, end in [(0, 500), (0, 31), (469, 500), (100, 400)]:
        assert index.find(donor[start:end], 0, 31) == [Run(0, end - start, serial, start)]
        around = np.concatenate([random_tokens(2, 7), donor[start:end], random_tokens(3, 9)])
        assert index.find(around, 0, 31) == [Run(7, 7 + end - start, serial, start)]


def test_a_run_is_followed_beyond_the_fingerprints_that_were_kept(add: Callable[..., int]) -> None:
    """Repetition leaves fingerprints at the end only; the run is still reported whole."""
    donor = np.concatenate([np.full(3000, 7), random_tokens(5, 40)]).astype(np.int32)
    index = SpanIndex(Geometry())
    serial = add(index, donor)
    runs = index.find(donor, 0, 64)
    assert runs is not None
    assert Run(0, donor.size, serial, 0) in runs


def test_scopes_never_mix(add: Callable[..., int]) -> None:
    text = random_tokens(1, 200)
    index = SpanIndex(Geometry())
    mine, theirs = add(index, text, 1), add(index, text, 2)
    assert index.find(text, 1, 31) == [Run(0, 200, mine, 0)]
    assert index.find(text, 2, 31) == [Run(0, 200, theirs, 0)]
    assert index.find(text, 3, 31) == []
    index.remove(mine)
    assert index.find(text, 1, 31) == []
    assert index.find(text, 2, 31) == [Run(0, 200, theirs, 0)]


def test_ids_up_to_the_largest_are_told_apart(add: Callable[..., int]) -> None:
    high = np.arange(2**31 - 200, 2**31, dtype=np.int64).astype(np.int32)
    index = SpanIndex(Geometry())
    serial = add(index, high)
    assert index.find(high, 0, 31) == [Run(0, 200, serial, 0)]
    assert index.find(high - 1, 0, 31) == [Run(1, 200, serial, 0)]
    assert index.find(np.bitwise_xor(high, 2**30), 0, 31) == []


def test_same_input_gives_the_same_answer_in_a_new_index(add: Callable[..., int]) -> None:
    donors = [random_tokens(seed, 200, vocabulary=5) for seed in range(6)]
    query = np.concatenate([donors[3][10:90], donors[1][5:150], random_tokens(9, 50, 5)])
    answers = []
    for _ in range(2):
        index = SpanIndex(Geometry.for_min_span(16))
        for tokens in donors:
            add(index, tokens)
        answers.append(index.find(query, 0, 16))
    assert answers[0] == answers[1]


def test_the_index_keeps_its_own_copy_of_the_tokens(add: Callable[..., int]) -> None:
    theirs = random_tokens(1, 100)
    original = theirs.copy()
    index = SpanIndex(Geometry())
    serial = index.add(index.prepare(theirs, 0))
    theirs[:] = 0
    assert np.array_equal(index.tokens_of(serial), original)
    assert index.find(original, 0, 31) == [Run(0, 100, serial, 0)]


def test_a_lookup_out_of_time_says_so(add: Callable[..., int]) -> None:
    index = SpanIndex(Geometry())
    text = random_tokens(1, 200)
    add(index, text)
    assert index.find(text, 0, 31, deadline=0.0) is None


def test_the_newest_of_equal_donors_is_found() -> None:
    document = random_tokens(1, 1500)
    index = SpanIndex(Geometry())
    serials = [index.add(index.prepare(document, 0)) for _ in range(3)]
    assert {run.donor for run in index.find(document[200:1200], 0, 64) or []} == {serials[-1]}
