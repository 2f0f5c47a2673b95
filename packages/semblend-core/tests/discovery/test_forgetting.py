"""Adding and removing in any order leaves the index, and each of its parts, as a model says it must be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from semblend_core.contract import TokenIds
from semblend_core.discovery import Geometry, Run, SpanIndex
from semblend_core.discovery.bucket_table import BucketTable
from semblend_core.discovery.growable import ExtentAllocator

SHARED = np.random.default_rng(7).integers(0, 2**31 - 1, 400).astype(np.int32)
"""Text that donors share, so that chains hold several of them."""


class IndexMachine(RuleBasedStateMachine):
    """Donors share pieces, repeat themselves, come and go; what is found is what is there."""

    serials = Bundle("serials")

    def __init__(self) -> None:
        super().__init__()
        self.index = SpanIndex(Geometry.for_min_span(16), depth=64)
        self.model: dict[int, tuple[TokenIds, int]] = {}

    @rule(
        target=serials,
        start=st.integers(0, 380),
        length=st.integers(0, 150),
        copies=st.integers(1, 6),
        own=st.integers(0, 60),
        seed=st.integers(0, 2**16),
        scope=st.integers(0, 1),
    )
    def add(self, start: int, length: int, copies: int, own: int, seed: int, scope: int) -> int:
        text = np.random.default_rng(seed).integers(0, 2**31 - 1, own).astype(np.int32)
        tokens = np.concatenate([*[SHARED[start : start + length]] * copies, text])
        donor = self.index.prepare(tokens, scope)
        bound = self.index.bytes_after_adding(donor)
        serial = self.index.add(donor)
        assert self.index.nbytes <= bound
        assert serial not in self.model
        self.model[serial] = (tokens, scope)
        return serial

    @rule(serial=consumes(serials))
    def remove(self, serial: int) -> None:
        self.index.remove(serial)
        del self.model[serial]
        with pytest.raises(KeyError):
            self.index.remove(serial)

    @rule(start=st.integers(0, 300), length=st.integers(16, 100), scope=st.integers(0, 1))
    def find(self, start: int, length: int, scope: int) -> None:
        query = SHARED[start : start + length]
        runs = self.index.find(query, scope, 16)
        assert runs is not None
        for run in runs:
            tokens, owner = self.model[run.donor]
            assert owner == scope
            assert np.array_equal(query[run.start : run.end], tokens[run.donor_start : run.donor_start + run.length])
        if any(owner == scope and _holds(tokens, query) for tokens, owner in self.model.values()):
            # Of donors with the same text one will do; see test_find for the window at either end.
            window = self.index.geometry.window
            assert any(run.start < window and run.end > query.size - window for run in runs)

    @rule(serial=serials)
    def read_back(self, serial: int) -> None:
        if serial in self.model:
            assert np.array_equal(self.index.tokens_of(serial), self.model[serial][0])

    @invariant()
    def is_whole(self) -> None:
        self.index.check_integrity()
        assert len(self.index) == len(self.model)


def _holds(tokens: TokenIds, query: TokenIds) -> bool:
    if tokens.size < query.size:
        return False
    windows = np.lib.stride_tricks.sliding_window_view(tokens, query.size)
    return bool((windows == query).all(axis=1).any())


class TableMachine(RuleBasedStateMachine):
    """Tags crowd into the first and the last bucket, so that they overflow and wrap around."""

    tags = Bundle("tags")

    def __init__(self) -> None:
        super().__init__()
        self.table = BucketTable()
        self.model: dict[int, int] = {}

    @rule(
        target=tags,
        wanted=st.lists(
            st.one_of(st.integers(1, 60), st.integers(2**32 - 60, 2**32 - 2), st.integers(1, 2**32 - 2)),
            max_size=80,
            unique=True,
        ),
    )
    def insert(self, wanted: list[int]) -> object:
        new = [tag for tag in wanted if tag not in self.model]
        bound = self.table.bytes_after_inserting(len(new))
        self.table = self.table.rebuilt_for(len(new))
        tags = np.sort(np.array(new, np.uint32))
        self.table.insert_absent(tags, tags // 2)
        assert self.table.nbytes <= bound
        self.model.update({tag: tag // 2 for tag in new})
        return multiple(*new)

    @rule(gone=st.lists(consumes(tags), max_size=40, unique=True))
    def remove(self, gone: list[int]) -> None:
        found, slots = self.table.find(np.array(gone, np.uint32))
        assert sorted(found.tolist()) == list(range(len(gone)))
        self.table.remove(slots)
        for tag in gone:
            del self.model[tag]

    @rule(asked=st.lists(st.integers(1, 2**32 - 2), max_size=20))
    def look_for_anything(self, asked: list[int]) -> None:
        found, _ = self.table.find(np.array(asked, np.uint32))
        assert {asked[i] for i in found.tolist()} == {tag for tag in asked if tag in self.model}

    @invariant()
    def holds_what_it_should(self) -> None:
        self.table.check_integrity()
        assert len(self.table) == len(self.model)
        asked = np.array(list(self.model), np.uint32)
        found, slots = self.table.find(asked)
        values = dict(zip(asked[found].tolist(), self.table.values_at(slots).tolist(), strict=True))
        assert values == self.model


class ExtentMachine(RuleBasedStateMachine):
    """Runs that are handed out never overlap, and what is freed is used again."""

    extents = Bundle("extents")

    def __init__(self) -> None:
        super().__init__()
        self.allocator = ExtentAllocator()
        self.model: set[tuple[int, int]] = set()

    @rule(target=extents, length=st.integers(1, 20))
    def allocate(self, length: int) -> tuple[int, int]:
        start = self.allocator.allocate(length)
        assert all(start + length <= other or other + size <= start for other, size in self.model)
        self.model.add((start, length))
        return start, length

    @rule(extent=consumes(extents))
    def free(self, extent: tuple[int, int]) -> None:
        self.allocator.free(*extent)
        self.model.remove(extent)

    @invariant()
    def adds_up(self) -> None:
        self.allocator.check_integrity()
        assert self.allocator.used == sum(length for _, length in self.model)
        assert self.allocator.end == max((start + length for start, length in self.model), default=0)


for machine, examples in ((IndexMachine, 40), (TableMachine, 40), (ExtentMachine, 50)):
    machine.TestCase.settings = settings(deadline=None, max_examples=examples, stateful_step_count=30)

TestIndex = IndexMachine.TestCase
TestTable = TableMachine.TestCase
TestExtents = ExtentMachine.TestCase


def test_memory_of_removed_donors_is_used_again(add: Callable[..., int]) -> None:
    source = np.random.default_rng(3)
    index = SpanIndex(Geometry())
    live = [add(index, source.integers(0, 50_000, 1000)) for _ in range(50)]
    held = index.nbytes
    for _ in range(20):
        for serial in live:
            index.remove(serial)
        live = [add(index, source.integers(0, 50_000, 1000)) for _ in range(50)]
    assert index.nbytes <= 1.1 * held
    index.check_integrity()


def test_a_number_that_is_used_again_is_never_taken_for_its_former_donor(add: Callable[..., int]) -> None:
    index = SpanIndex(Geometry())
    first = add(index, np.arange(100))
    index.remove(first)
    second = add(index, np.arange(1000, 1100))
    assert second != first
    assert index.find(np.arange(100, dtype=np.int32), 0, 31) == []
    assert index.find(np.arange(1000, 1100, dtype=np.int32), 0, 31) == [Run(0, 100, second, 0)]
    assert index.tokens_of(first) is None


def test_an_addition_that_runs_out_of_memory_changes_nothing(
    add: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    index = SpanIndex(Geometry())
    texts = [np.random.default_rng(seed).integers(0, 50_000, 200).astype(np.int32) for seed in range(6)]
    serials = [add(index, text) for text in texts[:5]]
    index.remove(serials.pop(2))
    monkeypatch.setattr("semblend_core.discovery.donor_table.MAX_ARENA_TOKENS", 10)
    for _ in range(2):
        with pytest.raises(MemoryError, match="at most 10 tokens"):
            add(index, texts[5])
    monkeypatch.undo()
    index.check_integrity()
    newest = [add(index, texts[2]), add(index, texts[5])]
    for serial, text in zip(serials + newest, [*texts[:2], *texts[3:5], texts[2], texts[5]], strict=True):
        assert index.find(text, 0, 31) == [Run(0, 200, serial, 0)]
    index.check_integrity()


def test_a_table_that_was_large_shrinks_with_its_next_insertion() -> None:
    table = BucketTable().rebuilt_for(50_000)
    tags = np.arange(1, 50_001, dtype=np.uint32) * np.uint32(80_000)
    table.insert_absent(tags, tags)
    large = table.nbytes
    _, slots = table.find(tags[100:])
    table.remove(slots)
    assert table.bytes_after_inserting(10) < large / 10
    table = table.rebuilt_for(10)
    assert table.nbytes < large / 10
    assert len(table) == 100
    table.check_integrity()
