"""With the donor known, what is left between edits is found, and it is token-exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core.contract import TokenIds
from semblend_core.discovery import ISLAND_GRAM, Geometry, SpanIndex

CommonRuns = Callable[[TokenIds, TokenIds, int], set[tuple[int, int, int]]]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**20), st.lists(st.integers(0, 299), min_size=1, max_size=12), st.sampled_from([16, 64]))
def test_every_island_of_distinct_text_is_found(
    common_runs: CommonRuns,
    add: Callable[..., int],
    assert_true_runs: Callable[..., None],
    seed: int,
    edits: list[int],
    min_span: int,
) -> None:
    donor = np.random.default_rng(seed).permutation(10_000)[:300].astype(np.int32)
    query = donor.copy()
    query[edits] += 20_000
    index = SpanIndex(Geometry.for_min_span(min_span))
    serial = add(index, donor)
    runs = index.islands(query, np.arange(query.size), serial, ISLAND_GRAM)
    assert_true_runs(runs, query, {serial: donor}, ISLAND_GRAM)
    assert {(r.start, r.end, r.donor_start) for r in runs} == common_runs(query, donor, ISLAND_GRAM)


def test_only_the_wanted_positions_are_searched(add: Callable[..., int]) -> None:
    donor = np.arange(200, dtype=np.int32)
    query = donor.copy()
    query[100] = 5000
    index = SpanIndex(Geometry())
    serial = add(index, donor)
    runs = index.islands(query, np.arange(120, 200), serial, ISLAND_GRAM)
    assert [(run.start, run.end) for run in runs] == [(101, 200)]
    assert index.islands(query, np.empty(0, np.int64), serial, ISLAND_GRAM) == []
    assert index.islands(query, np.array([199, 198]), serial, ISLAND_GRAM) == []


def test_a_forgotten_donor_has_no_islands(add: Callable[..., int]) -> None:
    donor = np.arange(200, dtype=np.int32)
    index = SpanIndex(Geometry())
    serial = add(index, donor)
    index.remove(serial)
    assert index.islands(donor, np.arange(200), serial, ISLAND_GRAM) == []
    short = add(index, donor[:10])
    assert index.islands(donor, np.arange(200), short, ISLAND_GRAM) == []


def test_a_range_of_the_donor_bounds_the_search(add: Callable[..., int]) -> None:
    index = SpanIndex(Geometry())
    donor = np.random.default_rng(5).integers(0, 50_000, 4000).astype(np.int32)
    serial = add(index, donor)
    query = np.concatenate([donor[100:140], donor[3000:3040]])
    wanted = np.arange(query.size)
    everywhere = index.islands(query, wanted, serial, ISLAND_GRAM)
    assert {run.donor_start for run in everywhere} == {100, 3000}
    near_the_end = index.islands(query, wanted, serial, ISLAND_GRAM, range(2900, 3500))
    assert [(run.start, run.end, run.donor_start) for run in near_the_end] == [(40, 80, 3000)]
