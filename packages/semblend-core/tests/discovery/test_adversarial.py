"""Text that repeats itself and donors that repeat each other cost bounded work, and hide nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from semblend_core.contract import TokenIds
from semblend_core.discovery import Geometry, Run, SpanIndex, best_cover
from semblend_core.discovery.runs import Diagonals, DonorColumns


class CountingIndex(SpanIndex):
    """The index, noting how many diagonals a lookup proposes and how many hits are behind them."""

    def __init__(self) -> None:
        super().__init__(Geometry())
        self.diagonals = self.hits = 0

    def find(self, query: TokenIds, scope: int, min_run: int, *, deadline: float | None = None) -> list[Run] | None:
        self.diagonals = self.hits = 0
        return super().find(query, scope, min_run, deadline=deadline)

    def _searched(
        self, query: TokenIds, donors: DonorColumns, diagonals: Diagonals, min_run: int, *more: Any
    ) -> list[Run]:
        assert diagonals.hits.size <= self.max_diagonals
        self.diagonals += int(diagonals.hits.size)
        self.hits += int(diagonals.hits.sum())
        return super()._searched(query, donors, diagonals, min_run, *more)


def text(seed: int, size: int) -> TokenIds:
    return np.random.default_rng(seed).integers(0, 2**31 - 1, size).astype(np.int32)


def find(index: SpanIndex, query: TokenIds, min_run: int = 64) -> list[Run]:
    runs = index.find(query, 0, min_run)
    assert runs is not None
    return runs


@pytest.mark.parametrize("period", range(1, 21))
def test_periodic_text_is_found_whole_with_little_work(
    add: Callable[..., int], assert_true_runs: Callable[..., None], period: int
) -> None:
    index = CountingIndex()
    pattern = text(period, period)
    donor = np.tile(pattern, 4000 // period + 1)[:4000]
    serials = [add(index, donor) for _ in range(3)]
    query = np.tile(pattern, 8192 // period + 1)[:8192]
    runs = find(index, query)
    assert_true_runs(runs, query, dict.fromkeys(serials, donor), 64)
    assert max(run.length for run in runs) >= 4000 - period, "the donor is there to be reused, in one piece"
    assert index.hits <= index.geometry.repeats * period * (1 + index.depth)
    assert index.nbytes < 100_000
    index.check_integrity()


def test_one_token_repeated_matches_itself_and_nothing_else(add: Callable[..., int]) -> None:
    index = CountingIndex()
    add(index, np.full(4096, 5))
    assert max(run.length for run in find(index, np.full(8192, 5, np.int32))) == 4096
    assert index.diagonals <= 4 * index.geometry.repeats
    assert find(index, np.full(8192, 6, np.int32)) == []


def test_a_run_of_one_token_inside_text_hides_no_text(add: Callable[..., int]) -> None:
    index = CountingIndex()
    donor = np.concatenate([text(1, 300), np.full(2000, 9), text(2, 300)]).astype(np.int32)
    serial = add(index, donor)
    runs = find(index, np.concatenate([text(3, 50), donor]).astype(np.int32))
    assert Run(50, 50 + donor.size, serial, 0) in runs


@pytest.mark.parametrize("donors", [20_000, pytest.param(100_000, marks=pytest.mark.exhaustive)])
def test_near_identical_donors_cost_a_lookup_a_bounded_number_of_comparisons(
    add: Callable[..., int], donors: int
) -> None:
    """A lookup's work does not depend on the number of donors: with half of them it is the same."""
    index = CountingIndex()
    shared = text(1, 120)
    query = np.concatenate([text(2, 40), shared, text(3, 40)])
    work = []
    newest = 0
    for number in range(donors):
        tokens = shared.copy()
        tokens[number % 120] = number
        newest = add(index, tokens)
        if number + 1 in (donors // 2, donors):
            runs = find(index, query, 31)
            work.append((index.diagonals, index.hits))
            assert newest - min(run.donor for run in runs) < 2_000, "the newest donors are the ones compared"
            assert max(run.length for run in runs) >= 60
    fingerprints = 200 // 2
    assert all(hits <= (1 + index.depth) * fingerprints and diagonals <= hits for diagonals, hits in work)
    assert work[1][1] <= 2 * work[0][1]
    assert index.nbytes / donors < 4 * 120 + 2 * 64 * 12 + 300
    for serial in range(newest - 500, newest + 1):
        index.remove(serial)
    assert max(run.donor for run in find(index, query, 31)) < newest - 500


def test_removing_one_of_many_identical_donors_does_not_walk_the_others(add: Callable[..., int]) -> None:
    index = SpanIndex(Geometry())
    shared = text(1, 100)
    serials = [add(index, shared) for _ in range(2000)]
    index.check_integrity()
    for serial in [*serials[:50], *serials[900:950], *serials[-50:]]:
        index.remove(serial)
    index.check_integrity()
    assert max(run.donor for run in find(index, shared)) == serials[-51]


def test_boilerplate_of_thousands_hides_no_unique_text(add: Callable[..., int]) -> None:
    index = CountingIndex()
    boilerplate = text(1, 400)
    serials = [add(index, np.concatenate([boilerplate, text(100 + n, 150)])) for n in range(3000)]
    for wanted in (0, 1234, 2999):
        query = np.concatenate([boilerplate, text(100 + wanted, 150), text(2, 50)])
        runs = find(index, query)
        assert any(run.donor == serials[wanted] and run.start <= 400 and run.end == 550 for run in runs)
        boiler = {run.donor for run in runs if run.start == 0}
        assert boiler <= {serials[wanted], *serials[-index.depth :]}, "the newest serve the boilerplate"
        pieces = best_cover(runs, min_span=64, worth=16, preference=lambda serial: (1, serial))
        assert sum(piece.length for piece in pieces) == 550


def test_the_strongest_diagonals_are_compared_when_not_all_can_be(add: Callable[..., int]) -> None:
    """Many donors share head and tail at the same places; the document between them, of another, is found.

    Each such donor's diagonal spans the whole prompt, so together they use up what one lookup may compare.
    """
    head, tail, document = text(1, 80), text(2, 80), text(3, 9000)
    index = SpanIndex(Geometry())
    numbers = [add(index, text(900 + n, 100)) for n in range(3)]
    for _ in range(12):
        add(index, np.concatenate([head, text(50, 9000), tail]))
    for serial in numbers:
        index.remove(serial)
    keeper = add(index, np.concatenate([text(4, 30), document]))
    for n in range(12):
        add(index, np.concatenate([head, text(60 + n, 9000), tail]))
    runs = find(index, np.concatenate([head, document, tail]))
    assert any(run.donor == keeper and run.length == 9000 for run in runs)


def test_passages_of_many_donors_are_all_found(add: Callable[..., int]) -> None:
    index = SpanIndex(Geometry())
    passages = [text(seed, 100) for seed in range(60)]
    for passage in passages:
        add(index, np.concatenate([text(int(passage[0]), 30), passage]))
    query = np.concatenate(passages)
    pieces = best_cover(find(index, query), min_span=64, worth=16, preference=lambda serial: (1, serial))
    assert [piece.length for piece in pieces] == [100] * 60


def test_a_prompt_of_480_passages_costs_a_bounded_number_of_comparisons(add: Callable[..., int]) -> None:
    passages = [text(seed, 66) for seed in range(480)]
    order = np.random.default_rng(1).permutation(480)
    query = np.concatenate([np.concatenate([passages[n], text(1000 + n, 4)]) for n in order])
    for donors in (passages, [np.concatenate(passages)]):
        index = CountingIndex()
        for donor in donors:
            add(index, donor)
        runs = find(index, query)
        assert index.diagonals <= 3 * index.max_diagonals
        assert index.hits <= query.size
        pieces = best_cover(runs, min_span=64, worth=16, preference=lambda serial: (1, serial), max_spans=100)
        assert len(pieces) == 100


@pytest.mark.parametrize("period", [1, 7, 100, 1_000_000])
def test_a_prompt_of_a_million_tokens_costs_no_more_comparisons_than_it_has_tokens(
    add: Callable[..., int], period: int
) -> None:
    index, tokens = CountingIndex(), 1_000_000
    pattern = text(period, period)
    for _ in range(3):
        add(index, np.resize(pattern, tokens // 2))
    runs = find(index, np.concatenate([text(1, 100), np.resize(pattern, tokens)]))
    assert max(run.length for run in runs) >= tokens // 2 - period
    assert index.diagonals <= 3 * index.max_diagonals
    assert index.hits <= (1 + index.depth) * tokens
    assert index.nbytes <= 3 * 16 * tokens // 2
