"""Fingerprints are what their definition says, computed the slow way."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core.discovery.fingerprint import Geometry, fingerprint, gram_hashes, keep_last_repeats, winnow

few_hashes = st.lists(st.integers(0, 9), max_size=60)
any_hashes = st.lists(st.integers(0, 2**32 - 1), max_size=60)


@settings(deadline=None, max_examples=300)
@given(st.one_of(few_hashes, any_hashes), st.integers(1, 20))
def test_winnowing_keeps_the_smallest_of_every_window_and_its_equals(hashes: list[int], window: int) -> None:
    width = min(window, len(hashes))
    kept: set[int] = set()
    for start in range(len(hashes) - width + 1) if hashes else ():
        smallest = min(hashes[start : start + width])
        kept |= {at for at in range(start, start + width) if hashes[at] == smallest}
    assert winnow(np.array(hashes, np.uint32), window).tolist() == sorted(kept)


@settings(deadline=None, max_examples=200)
@given(few_hashes, st.integers(1, 5), st.integers(1, 6))
def test_of_repeated_hashes_the_last_are_kept_and_of_periodic_ones_the_end(
    hashes: list[int], repeats: int, apart: int
) -> None:
    places: dict[int, list[int]] = defaultdict(list)
    for position, value in enumerate(hashes):
        if places[value] and position - places[value][-1] < apart:
            places[value].pop()
        places[value].append(position)
    expected = sorted(position for each in places.values() for position in each[-repeats:])
    kept = keep_last_repeats(np.array(hashes, np.uint32), np.arange(len(hashes)), repeats, apart)
    assert kept.tolist() == expected


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 2**31 - 1), max_size=80), st.sampled_from([2, 8, 16]), st.integers(0, 20))
def test_a_hash_depends_on_its_own_tokens_alone(tokens: list[int], gram: int, offset: int) -> None:
    ids = np.array(tokens, np.int32)
    hashes = gram_hashes(ids, gram)
    assert hashes.size == max(0, len(tokens) - gram + 1)
    assert gram_hashes(ids[offset:], gram).tolist() == hashes[offset:].tolist()
    for position in range(hashes.size):
        assert gram_hashes(ids[position : position + gram], gram).tolist() == [hashes[position]]


def test_similar_grams_have_different_hashes() -> None:
    source = np.random.default_rng(1)
    base = source.integers(0, 50_000, 16).astype(np.int32)
    variants = [base]
    for place in range(16):
        for change in (1, -1, 1000):
            variants.append(base.copy())
            variants[-1][place] += change
    variants += [np.roll(base, shift) for shift in range(1, 16)]
    assert len({int(gram_hashes(variant, 16)[0]) for variant in variants}) == len(variants)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 5000])
def test_fingerprinting_reads_its_tokens_only(size: int) -> None:
    tokens = np.random.default_rng(2).integers(0, 50_000, size).astype(np.int32)
    tokens.flags.writeable = False
    positions, hashes = fingerprint(tokens, Geometry())
    assert positions.size == hashes.size
    assert (np.diff(positions) > 0).all()
    assert size < 5000 or 0.045 < positions.size / size < 0.075, "about one k-gram in sixteen and a half is kept"
