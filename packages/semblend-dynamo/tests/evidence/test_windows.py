"""Windows reach every token, in order, and are never stubs."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_dynamo.evidence.minilm import sliding_windows

sizes = st.integers(1, 60).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1)))


@settings(deadline=None)  # A busy machine is no fault of the code.
@given(length=st.integers(0, 2000), size_and_overlap=sizes)
def test_windows_cover_everything_and_overlap(length: int, size_and_overlap: tuple[int, int]) -> None:
    size, overlap = size_and_overlap
    windows = sliding_windows(length, size, overlap)
    assert {at for start, end in windows for at in range(start, end)} == set(range(length))
    assert all(end - start == min(size, length) for start, end in windows)
    for (_, end), (following, _) in pairwise(windows):
        assert end - following >= overlap
    assert len(set(windows)) == len(windows)


@pytest.mark.parametrize(("size", "overlap"), [(8, 8), (8, 9), (8, -1), (0, 0)])
def test_an_overlap_that_makes_no_progress_is_refused(size: int, overlap: int) -> None:
    with pytest.raises(ValueError, match="overlap"):
        sliding_windows(100, size, overlap)
