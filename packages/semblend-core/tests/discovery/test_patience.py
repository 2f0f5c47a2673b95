"""Many versions of one text: what was found in time counts, and the work stays near that of one version."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend_core.discovery import Geometry, Run, SpanIndex, search
from semblend_core.discovery.keyed_tags import KeyedTags
from semblend_core.discovery.runs import Diagonals, DonorColumns

Tokens = np.ndarray


def version(text: Tokens, every: int, seed: int) -> Tokens:
    """With another token every so often, at places of its own."""
    changed = text.copy()
    at = np.arange(seed * 7 % every, text.size, every)
    changed[at] = np.random.default_rng(seed).integers(60_000, 70_000, at.size)
    return changed


@pytest.fixture
def text() -> Tokens:
    return np.random.default_rng(1).integers(0, 50_000, 6000).astype(np.int32)


@pytest.fixture
def versions(text: Tokens) -> SpanIndex:
    index = SpanIndex(Geometry())
    for seed in range(12):
        index.add(index.prepare(version(text, 200, seed), 0))
    return index


def covered(runs: list[Run]) -> int:
    return int(np.unique(np.concatenate([np.arange(run.start, run.end) for run in runs])).size)


def clock_of(ticks: Callable[[], float], monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("search", "span_index"):
        monkeypatch.setattr(f"semblend_core.discovery.{place}.time", SimpleNamespace(perf_counter=ticks, sleep=None))


def test_where_time_is_up_behind_the_newest_donors_what_they_hold_is_the_answer(
    versions: SpanIndex, text: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = version(text, 200, 99)
    everything = versions.find(prompt, 0, 64)
    assert everything is not None
    assert not everything.cut_short
    now = iter(range(1000))
    clock_of(lambda: float(next(now)), monkeypatch)
    # Begun at 0, the newest compared by 2: half of the time is over, all of it is not.
    cut = versions.find(prompt, 0, 64, deadline=3.0)
    assert cut is not None
    assert cut.cut_short
    assert 0.3 * covered(everything) < covered(cut) <= covered(everything)
    for run in cut:
        donor = versions.tokens_of(run.donor)
        assert donor is not None
        assert (donor[run.donor_start : run.donor_start + run.length] == prompt[run.start : run.end]).all()


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(-5, 5)), min_size=1, max_size=12),
    st.integers(0, 2**32 - 1),
)
def test_what_counts_as_explained_lies_inside_a_run_beyond_which_nothing_agrees(
    spans: list[tuple[int, int]], hits: list[tuple[int, int, int]], seed: int
) -> None:
    gram = 4
    draw = np.random.default_rng(seed)
    query, donor = draw.integers(0, 2, 100), draw.integers(0, 2, 100)
    runs = [Run(start, start + length, 7, start) for start, length in spans]
    first = np.array([start for start, _, _ in hits])
    last = first + np.array([length for _, length, _ in hits])
    shift = np.array([by for _, _, by in hits])
    diagonals = Diagonals(np.zeros_like(first), shift, first, last, np.ones_like(first))
    donors = DonorColumns(donor, np.array([0]), np.array([100]), np.array([7]))
    left = set(search.unexplained(query, donors, diagonals, runs, gram).tolist())

    def agrees(at: int, by: int) -> bool:
        return 0 <= at < 100 and 0 <= at + by < 100 and query[at] == donor[at + by]

    for number in range(first.size):
        begin, end, by = first[number], last[number] + gram, shift[number]
        around = [run for run in runs if run.start <= begin and end <= run.end]
        closed = [run for run in around if not agrees(run.start - 1, by) and not agrees(run.end, by)]
        assert number in left or closed
        assert number not in left or len(closed) < max(1, len(around))


def test_thousands_of_runs_and_hits_take_no_table_of_both() -> None:
    runs = [Run(20 * n, 20 * n + 18, 7, 20 * n) for n in range(10_000)]
    first = np.random.default_rng(1).integers(0, 200_000, 50_000)
    diagonals = Diagonals(np.zeros_like(first), np.zeros_like(first), first, first, np.ones_like(first))
    text = np.zeros(200_100, np.int32)
    donors = DonorColumns(text, np.array([0]), np.array([text.size]), np.array([7]))
    tracemalloc.start()
    search.unexplained(text, donors, diagonals, runs, 16)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32e6


@pytest.mark.parametrize("alike", ["low bits", "high bits", "close together"])
def test_nobody_can_write_prompts_that_crowd_one_part_of_the_table(alike: str) -> None:
    numbers = np.arange(1 << 14, dtype=np.uint32)
    hashes = {
        "low bits": numbers << np.uint32(18),
        "high bits": numbers | np.uint32(0xABCD0000),
        "close together": numbers + np.uint32(123_456_789),
    }[alike]
    loads = [np.bincount(KeyedTags().of(hashes, 3) >> np.uint32(25), minlength=128) for _ in range(20)]
    # With a random key now and then one part has some times as many as it should. Nobody knows which, or when.
    assert np.median([load.max() for load in loads]) < 4 * hashes.size / 128


def test_tags_of_two_namespaces_or_processes_have_nothing_in_common() -> None:
    hashes = np.random.default_rng(1).integers(1, 2**32 - 1, 1000).astype(np.uint32)
    one, other = KeyedTags(), KeyedTags()
    tags = [one.of(hashes, 1), one.of(hashes, 2), other.of(hashes, 1)]
    for left, right in ((0, 1), (0, 2)):
        assert np.count_nonzero(tags[left] == tags[right]) <= 1
        assert np.unique(tags[left] ^ tags[right]).size > 990, "no difference leads from one to the other"
    assert np.array_equal(tags[0], one.of(hashes, 1))
