"""The brute-force answers that the index is held against."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from semblend_core.contract import TokenIds
from semblend_core.discovery import Run, SpanIndex

CommonRuns = Callable[[TokenIds, TokenIds, int], set[tuple[int, int, int]]]


@pytest.fixture(scope="session")
def common_runs() -> CommonRuns:
    return _common_runs


@pytest.fixture(scope="session")
def add() -> Callable[..., int]:
    def add_donor(index: SpanIndex, tokens: Iterable[int], scope: int = 0) -> int:
        return index.add(index.prepare(np.asarray(tokens, np.int32), scope))

    return add_donor


@pytest.fixture(scope="session")
def assert_true_runs() -> Callable[..., None]:
    return _assert_true_runs


def _common_runs(query: TokenIds, donor: TokenIds, at_least: int) -> set[tuple[int, int, int]]:
    """Every maximal run of equal tokens, diagonal by diagonal: (query start, query end, donor start)."""
    found: set[tuple[int, int, int]] = set()
    for shift in range(-query.size, donor.size):
        low, high = max(0, -shift), min(query.size, donor.size - shift)
        if high - low < at_least:
            continue
        equal = np.zeros(high - low + 2, np.int8)
        equal[1:-1] = query[low:high] == donor[low + shift : high + shift]
        edges = np.flatnonzero(np.diff(equal))
        for begin, end in zip(edges[0::2].tolist(), edges[1::2].tolist(), strict=True):
            if end - begin >= at_least:
                found.add((low + begin, low + end, low + begin + shift))
    return found


def _assert_true_runs(runs: Iterable[Run], query: TokenIds, donors: dict[int, TokenIds], min_run: int) -> None:
    """Every run is token-equal, as long as asked for, and cannot be extended."""
    for run in runs:
        donor = donors[run.donor]
        assert run.length >= min_run
        assert np.array_equal(query[run.start : run.end], donor[run.donor_start : run.donor_start + run.length])
        before, after = run.donor_start - 1, run.donor_start + run.length
        assert run.start == 0 or before < 0 or query[run.start - 1] != donor[before], "could start earlier"
        assert run.end == query.size or after == donor.size or query[run.end] != donor[after], "could end later"
