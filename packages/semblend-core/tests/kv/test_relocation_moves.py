"""Moves are their spans token by token, and what cannot go together is refused before anything is written."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core import Span
from semblend_core.kv.donor_kv import InvalidKvError
from semblend_core.kv.layout import PagedKv
from semblend_core.kv.moves import Moves, SlotTable
from semblend_core.kv.places import SpanMoves
from semblend_core.kv.relocation import relocate
from semblend_core.kv.rotation import Rotation

LAYERS, BLOCKS, BLOCK, HEADS, DIM = 3, 10, 8, 2, 32
LLAMA = {"model_type": "llama", "head_dim": DIM, "rope_theta": 1e5}
ROTATION = Rotation.from_config(LLAMA)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_moves_are_the_spans_token_by_token(data: st.DataObject) -> None:
    block = data.draw(st.sampled_from([1, 4, 16]))
    target_block = data.draw(st.sampled_from([1, 8]))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    donors = {
        name: SlotTable(random.permutation(200)[: -(-64 // block)], block, first_position=data.draw(st.integers(0, 30)))
        for name in "ab"
    }
    target = SlotTable(random.permutation(300)[: -(-256 // target_block)], target_block)
    spans, position = [], 0
    for _ in range(data.draw(st.integers(1, 6))):
        position += data.draw(st.integers(0, 5))
        donor, length = data.draw(st.sampled_from("ab")), data.draw(st.integers(1, 30))
        start = donors[donor].first_position + data.draw(st.integers(0, 64 - length))
        spans.append(Span(position, donor, start, length))
        position += length
    moves = Moves.build(spans, sources=donors, target=target)
    expected = []
    for span in spans:
        table = donors[span.donor_id]
        for step in range(span.length):
            place, goal = span.donor_start + step - table.first_position, span.target_start + step
            source_slot = int(table.blocks[place // block]) * block + place % block
            target_slot = int(target.blocks[goal // target_block]) * target_block + goal % target_block
            expected.append((source_slot, target_slot, span.shift))
    got = zip(moves.source_slots, moves.target_slots, moves.shifts[moves.shift_rows], strict=True)
    assert [tuple(map(int, entry)) for entry in got] == expected
    assert len(set(moves.shifts.tolist())) == moves.shifts.size


def test_tokens_that_follow_each_other_with_one_shift_are_a_span() -> None:
    table = SlotTable(np.arange(20)[::-1], BLOCK)
    spans = [Span(0, "d", 5, 7), Span(7, "d", 12, 3), Span(10, "d", 90, 6), Span(20, "d", 25, 4)]
    moves = Moves.build(spans, sources={"d": table}, target=table)
    found = SpanMoves.of_tokens(moves)
    assert found.lengths.tolist() == [10, 6, 4]
    assert found.shifts.tolist() == [-5, -80, -5]
    assert found.tokens == moves.tokens
    for start, length in zip(found.target_starts, found.lengths, strict=True):
        part = slice(start, start + length)
        assert np.array_equal(found.target_blocks[part], moves.target_slots[part])
        assert np.array_equal(found.source_blocks[part], moves.source_slots[part])


def test_a_slot_far_beyond_the_pool_costs_no_memory() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidKvError, match="beyond the pool's 80"):
            moved(tables={"target": SlotTable(np.array([3, 2**31 // BLOCK - 1]), BLOCK)})
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def table_of(pool: PagedKv, seed: int) -> SlotTable:
    return SlotTable(np.random.default_rng(seed).permutation(pool.keys[0].shape[0]), pool.block_size)


def moved(source: PagedKv | None = None, target: PagedKv | None = None, **changes: Any) -> None:
    source = source or other(BLOCKS, BLOCK, HEADS, DIM)
    target = target or other(BLOCKS, BLOCK, HEADS, DIM)
    spans = changes.get("spans", [Span(0, "d", 8, 16)])
    tables = {"sources": {"d": table_of(source, 1)}, "target": table_of(target, 2)}
    moves = Moves.build(spans, **{**tables, **changes.get("tables", {})})
    relocate(source, target, moves, changes.get("rotation", ROTATION))


def other(*shape: int, dtype: torch.dtype = torch.float32, layers: int = LAYERS) -> PagedKv:
    return PagedKv.from_stacked([torch.zeros(2, *shape, dtype=dtype) for _ in range(layers)], 0)


POOL = other(BLOCKS, BLOCK, HEADS, DIM)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: moved(target=other(BLOCKS, BLOCK, HEADS, DIM, layers=2)), "source has 3 layers"),
        (lambda: moved(target=other(BLOCKS, BLOCK, HEADS, 64)), "keys are (2, 32) (heads, components) in the source"),
        (lambda: moved(target=other(BLOCKS, BLOCK, 4, DIM)), "(4, 32) in the target"),
        (lambda: moved(target=other(BLOCKS, BLOCK, HEADS, DIM, dtype=torch.bfloat16)), "target torch.bfloat16"),
        (lambda: moved(target=PagedKv(POOL.keys)), "3 of values, target 3 and 0"),
        (
            lambda: moved(rotation=Rotation.from_config({**LLAMA, "head_dim": 64})),
            "the rotation is for keys of 64, these have 32",
        ),
        (
            lambda: moved(tables={"target": SlotTable(np.array([9, 10]), BLOCK)}),
            "target slot 87 is beyond the pool's 80",
        ),
        (lambda: moved(POOL, POOL, tables={"target": table_of(POOL, 1)}), "both read and written"),
        (lambda: moved(POOL, PagedKv(POOL.values, POOL.keys)), "in one allocation but are not the same pool"),
        (lambda: moved(spans=[Span(0, "d", 70, 16)]), "outside the positions 0 to 80"),
        (lambda: moved(spans=[Span(70, "d", 0, 16)]), "outside the positions 0 to 80"),
        (lambda: moved(spans=[Span(0, "e", 0, 16)]), "no block table for donor 'e'"),
        (lambda: moved(spans=[Span(0, "d", 0, 16), Span(8, "d", 30, 16)]), "written twice"),
        (lambda: moved(tables={"target": SlotTable(np.array([3, 3]), BLOCK)}), "written twice"),
        (lambda: moved(tables={"target": SlotTable(np.array([-1, 3]), BLOCK)}), "outside 0 to 2**31"),
        (lambda: SlotTable(np.zeros((2, 2), np.int64), 4), "a block table is a row of blocks"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused_before_anything_is_written(call: Callable[[], None], named: str) -> None:
    with pytest.raises(InvalidKvError, match=re.escape(named)):
        call()
