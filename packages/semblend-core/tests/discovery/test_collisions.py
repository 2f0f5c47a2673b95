"""Hashes only propose: whatever they collide on, nothing but equal tokens comes out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semblend_core.discovery import ISLAND_GRAM, Geometry, Run, SpanIndex, fingerprint
from semblend_core.discovery.bucket_table import BucketTable
from semblend_core.discovery.keyed_tags import KeyedTags

HASH_FUNCTIONS: dict[str, Callable[[int], npt.NDArray[np.uint32]]] = {
    "constant": lambda count: np.full(count, 42, np.uint32),
    "zero": lambda count: np.zeros(count, np.uint32),
    "all ones": lambda count: np.full(count, 0xFFFFFFFF, np.uint32),
    "two values": lambda count: (np.arange(count) % 2).astype(np.uint32),
}


@pytest.fixture(params=HASH_FUNCTIONS)
def poor_hash(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    hash_of = HASH_FUNCTIONS[request.param]

    def joined(halves: npt.NDArray[np.uint32], half: int) -> npt.NDArray[np.uint32]:
        return hash_of(max(0, halves.size - half))

    def tags(halves: npt.NDArray[np.uint32], half: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        return hash_of(max(0, halves.size - half))[positions]

    monkeypatch.setattr(fingerprint, "_joined", joined)
    monkeypatch.setattr(fingerprint, "_tags", tags)
    return str(request.param)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**16), st.integers(0, 1))
def test_wrong_spans_never_come_out_of_a_poor_hash(
    poor_hash: str, add: Callable[..., int], assert_true_runs: Callable[..., None], seed: int, scope: int
) -> None:
    source = np.random.default_rng(seed)
    index = SpanIndex(Geometry.for_min_span(16))
    donors = [source.integers(0, 3, 100).astype(np.int32) for _ in range(6)]
    owners = {add(index, tokens, number % 2): number for number, tokens in enumerate(donors)}
    query = np.concatenate([donors[0][:40], donors[1][20:70], source.integers(0, 3, 30).astype(np.int32)])
    by_serial = {serial: donors[number] for serial, number in owners.items()}
    runs = index.find(query, scope, 4)
    assert runs is not None
    assert_true_runs(runs, query, by_serial, 4)
    assert all(owners[run.donor] % 2 == scope for run in runs), "another namespace's donor came out"
    for serial in owners:
        islands = index.islands(query, np.arange(query.size), serial, ISLAND_GRAM)
        assert_true_runs(islands, query, by_serial, ISLAND_GRAM)
    index.check_integrity()
    for serial in owners:
        index.remove(serial)
        index.check_integrity()
    assert index.find(query, scope, 4) == []


def test_a_tiny_hash_still_finds_what_few_donors_share(
    add: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    joined, tags = fingerprint._joined, fingerprint._tags
    monkeypatch.setattr(fingerprint, "_joined", lambda *given: joined(*given) % np.uint32(64))
    monkeypatch.setattr(fingerprint, "_tags", lambda *given: tags(*given) % np.uint32(64))
    index = SpanIndex(Geometry(), depth=64)
    texts = [np.random.default_rng(seed).integers(0, 2**31 - 1, 80).astype(np.int32) for seed in range(4)]
    serials = [add(index, text) for text in texts]
    for serial, text in zip(serials, texts, strict=True):
        assert index.find(text, 0, 31) == [Run(0, 80, serial, 0)]


def test_namespaces_whose_tags_collide_stay_apart(add: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyedTags, "of", lambda tags, hashes, scope: BucketTable.usable(hashes))
    text = np.random.default_rng(1).integers(0, 2**31 - 1, 200).astype(np.int32)
    index = SpanIndex(Geometry())
    mine = add(index, text, 1)
    for _ in range(5):
        add(index, text, 2)
    assert index.find(text, 1, 31) == [Run(0, 200, mine, 0)]
    assert index.find(text, 3, 31) == []
    index.remove(mine)
    assert index.find(text, 1, 31) == []
    index.check_integrity()
