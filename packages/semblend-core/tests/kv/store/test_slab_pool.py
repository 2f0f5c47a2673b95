"""Lent memory never overlaps, and all of it comes back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core.kv.store.slab_pool import ALIGNMENT, Extent, SlabPool, _slab_sizes


@settings(deadline=None)
@given(
    total=st.integers(0, 40_000),
    steps=st.lists(st.tuples(st.booleans(), st.lists(st.integers(1, 6_000), min_size=1, max_size=4)), max_size=40),
)
def test_extents_never_overlap(total: int, steps: list[tuple[bool, list[int]]]) -> None:
    pool = SlabPool(total, 16_384, pinned=False)
    while pool.grow():
        pass
    everything = pool.free_bytes
    assert everything <= total
    lent: list[list[Extent]] = []
    for take, sizes in steps:
        if take:
            extents = pool.take(sizes)
            if extents is not None:
                assert [extent.size >= size for extent, size in zip(extents, sizes, strict=True)]
                lent.append(extents)
        elif lent:
            pool.give(lent.pop(len(sizes) % len(lent)))
        pool.check_integrity()
        used = sorted((e.slab, e.offset, e.offset + e.size) for extents in lent for e in extents)
        for (slab, _, end), (next_slab, start, _) in pairwise(used):
            assert slab != next_slab or end <= start, "two donors share bytes"
        assert pool.free_bytes + sum(e.size for extents in lent for e in extents) == everything
    for extents in lent:
        pool.give(extents)
    assert pool.free_bytes == everything


def test_a_pool_that_is_not_grown_lends_nothing() -> None:
    pool = SlabPool(2 * ALIGNMENT, ALIGNMENT * 16, pinned=False)
    assert pool.take([1]) is None
    assert pool.grow()
    assert not pool.grow()
    assert pool.take([1, 1]) is not None
    assert pool.take([1]) is None


@settings(deadline=None)
@given(
    total=st.integers(0, 40_000),
    slab=st.sampled_from([4_096, 16_384]),
    size=st.integers(1, 6_000),
    count=st.integers(1, 40),
)
def test_a_pool_knows_beforehand_what_it_can_lend(total: int, slab: int, size: int, count: int) -> None:
    pool = SlabPool(total, slab, pinned=False)
    expected = pool.fits(size, count)
    while pool.grow():
        pass
    assert expected == (pool.take([size] * count) is not None)


@pytest.mark.parametrize("total", [0, 65_535, 65_536, 3 * 2**20 + 5, 2**30 + 2**29 + 1, 5 * 2**30])
def test_pinned_slabs_are_powers_of_two_within_the_budget(total: int) -> None:
    sizes = _slab_sizes(total, 2**30, pinned=True)
    assert all(size & (size - 1) == 0 and size <= 2**30 for size in sizes), "or torch rounds them up"
    assert total - 65_536 < sum(sizes) <= total
