"""Spans of many donors move in one launch, to the bits that relocating donor by donor with torch gives."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra `gpu`")

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from semblend_core import Span
from semblend_core.kv import DonorKv, InvalidKvError, Moves, PagedKv, Rotation, SlotTable, relocate_spans
from semblend_core.kv import relocation as module
from semblend_core.kv.torch_relocation import relocate_with_torch

CPU = torch.device("cpu")
TOKENS, DONOR = 176, 90
SPANS = [
    Span(3, "a", 33, 20),
    Span(23, "b", 0, 1),
    Span(30, "a", 30, 3),
    Span(40, "b", 17, 60),
    Span(101, "c", 45, 45),
    Span(150, "b", 2, 26),
]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def interpreted(interpret: Callable[..., ModuleType]) -> ModuleType:
    return interpret("triton_rows", "triton_relocation")


@pytest.fixture(params=["torch", "interpreter", pytest.param("cuda", marks=needs_gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "interpreter":
            patch.setattr(module, "has_kernel", lambda *_: True)
            kernel = request.getfixturevalue("interpreted")
            patch.setitem(sys.modules, "semblend_core.kv.triton_relocation", kernel)
        yield torch.device("cuda" if request.param == "cuda" else "cpu")


def llama(dim: int, interleaved: bool = False, **fields: Any) -> Rotation:
    return Rotation.from_config({"model_type": "llama", "head_dim": dim, **fields}, interleaved=interleaved)


def mla(interleaved: bool) -> Rotation:
    fields = {"model_type": "deepseek_v3", "kv_lora_rank": 40, "qk_rope_head_dim": 24, "rope_interleave": interleaved}
    return Rotation.from_config(fields)


class Shape:
    """How pools and donors are made: sizes in tokens, heads, components and layers."""

    def __init__(
        self,
        pool: str,
        donor: str = "whole",
        *,
        block: int = 16,
        heads: int = 2,
        key: int = 32,
        value: int = 32,
        dtype: torch.dtype = torch.bfloat16,
        layers: int = 2,
        scales: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
        device: torch.device = CPU,
    ) -> None:
        self.layout, self.donor_kind, self.block, self.heads, self.key = pool, donor, block, heads, key
        self.value = 0 if pool == "latent" else value
        self.dtype, self.layers, self.scales, self.device = dtype, layers, scales, device
        self.blocks = 2 * -(-TOKENS // block)

    def random(self, *shape: int) -> Tensor:
        return (torch.randn(shape) * 2).to(self.dtype).to(self.device)

    def pool(self) -> PagedKv:
        torch.manual_seed(2)
        each, size = range(self.layers), (self.blocks, self.heads, self.block)
        if self.layout == "nhd":
            pool = PagedKv.from_stacked([self.random(2, size[0], size[2], size[1], self.key) for _ in each], 0)
        elif self.layout == "hnd":
            stacked = [self.random(size[0], 2, *size[1:], self.key).transpose(2, 3) for _ in each]
            pool = PagedKv.from_stacked(stacked, 1)
        elif self.layout == "joined":
            pool = PagedKv.from_joined([self.random(*size, self.key + self.value) for _ in each], self.key)
        else:
            assert self.layout == "latent"
            pool = PagedKv.from_latent([self.random(self.blocks, self.block, self.key) for _ in each])
        return pool if self.scales is None else pool.with_scales(*self.scales)

    def table(self) -> SlotTable:
        return SlotTable(np.random.default_rng(4).permutation(self.blocks)[: self.blocks // 2], self.block)

    def donor(self, first: int = 0, tokens: int = DONOR) -> DonorKv:
        parts = [self._part(tokens, dim) for dim in (self.key, self.value) if dim]
        return DonorKv(parts[0], parts[1] if self.value else None, first)

    def _part(self, tokens: int, dim: int) -> Tensor:
        if self.donor_kind == "whole":
            return self.random(self.layers, tokens, self.heads, dim)
        if self.donor_kind == "part of a slab":
            return self.random(self.layers, tokens + 9, self.heads, dim)[:, 4:-5]
        if self.donor_kind == "tokens first":
            return self.random(tokens, self.layers, self.heads, dim).transpose(0, 1)
        if self.donor_kind == "heads first":
            return self.random(self.layers, self.heads, tokens, dim).transpose(1, 2)
        assert self.donor_kind == "unaligned"
        return self.random(1 + self.layers * tokens * self.heads * dim)[1:].view(self.layers, tokens, self.heads, dim)

    def donors(self) -> dict[str, DonorKv]:
        """Whole donors, one that begins later, and one of which only a part is there."""
        torch.manual_seed(7)
        return {"a": self.donor(first=20), "b": self.donor(), "c": self.donor(first=40, tokens=50)}


def bits(pool: PagedKv) -> list[Tensor]:
    return [
        view.cpu().clone(memory_format=torch.contiguous_format).view(torch.uint8) for view in pool.keys + pool.values
    ]


def reference(shape: Shape, donors: dict[str, DonorKv], spans: list[Span], rotation: Rotation) -> list[Tensor]:
    target = shape.pool()
    for donor_id, donor in donors.items():
        own = [span for span in spans if span.donor_id == donor_id]
        moves = Moves.build(own, sources={donor_id: SlotTable.of_donor(donor)}, target=shape.table())
        if own:
            relocate_with_torch(PagedKv.from_donor(donor), target, moves, rotation)
    return bits(target)


def check(shape: Shape, rotation: Rotation, spans: list[Span]) -> None:
    donors, target = shape.donors(), shape.pool()
    before = bits(target)
    relocate_spans(donors, spans, target, shape.table(), rotation)
    wanted = reference(shape, donors, spans, rotation)
    assert not all(map(torch.equal, before, wanted))
    for got, expected in zip(bits(target), wanted, strict=True):
        assert torch.equal(got, expected)


HALF, PAIRS = llama(32), llama(32, True)
FP8 = {"dtype": torch.float8_e4m3fn, "scales": ((0.37, 0.11), (0.9, 2.0))}
CASES: dict[str, tuple[dict[str, Any], Rotation]] = {
    **{layout: ({"pool": layout}, HALF) for layout in ("nhd", "hnd", "joined")},
    **{
        f"donor {kind}": ({"pool": "joined", "donor": kind}, HALF)
        for kind in ("part of a slab", "tokens first", "heads first", "unaligned")
    },
    "float32": ({"pool": "nhd", "dtype": torch.float32}, HALF),
    "float16": ({"pool": "nhd", "dtype": torch.float16}, HALF),
    "fp8": ({"pool": "joined", "dtype": torch.float8_e5m2}, HALF),
    "fp8 with scales": ({"pool": "joined", **FP8}, HALF),
    "fp8 with scales, partial": ({"pool": "nhd", **FP8}, llama(32, partial_rotary_factor=0.5)),
    "interleaved": ({"pool": "hnd"}, PAIRS),
    "partial": ({"pool": "nhd"}, llama(32, partial_rotary_factor=0.5)),
    "block 1": ({"pool": "nhd", "block": 1}, HALF),
    "block 20": ({"pool": "hnd", "block": 20}, HALF),
    "three heads of 20": ({"pool": "joined", "heads": 3, "key": 20, "value": 20}, llama(20)),
    "value narrower than key": ({"pool": "joined", "key": 48, "value": 32}, llama(48)),
    "one layer": ({"pool": "nhd", "layers": 1}, HALF),
    "MLA": ({"pool": "latent", "key": 64, "heads": 1}, mla(True)),
    "MLA half-split": ({"pool": "latent", "key": 64, "heads": 1}, mla(False)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_writes_the_bits_of_relocating_donor_by_donor(name: str, device: torch.device) -> None:
    fields, rotation = CASES[name]
    check(Shape(**fields, device=device), rotation, SPANS)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_spans(data: st.DataObject, device: torch.device) -> None:
    edges = sorted(data.draw(st.sets(st.integers(0, TOKENS), min_size=2, max_size=12)))
    spans = []
    for start, end in zip(edges[::2], edges[1::2], strict=False):
        length = min(end - start, 40)
        donor_start = data.draw(st.integers(20, DONOR - length))
        spans.append(Span(start, data.draw(st.sampled_from("ab")), donor_start, length))
    order = data.draw(st.permutations(spans))
    shape = Shape(
        "joined", block=data.draw(st.sampled_from([1, 4, 16])), heads=data.draw(st.integers(1, 3)), device=device
    )
    check(shape, HALF, list(order))


def test_a_sequence_need_not_begin_at_position_0(device: torch.device) -> None:
    shape = Shape("nhd", device=device)
    donors, target = shape.donors(), shape.pool()
    later = [Span(span.target_start + 1000, *(span.donor_id, span.donor_start + 1000, span.length)) for span in SPANS]
    moved = {name: replace(donor, first_position=donor.first_position + 1000) for name, donor in donors.items()}
    relocate_spans(moved, later, target, replace(shape.table(), first_position=1000), HALF)
    assert all(map(torch.equal, bits(target), reference(shape, donors, SPANS, HALF)))


def test_pools_beyond_31_bits_of_elements(device: torch.device) -> None:
    blocks = 2**31 // (16 * 64) + 4
    pool = PagedKv.from_latent([torch.empty(blocks, 16, 64, dtype=torch.bfloat16, device=device)])
    donor = DonorKv(torch.randn(1, 40, 1, 64).to(torch.bfloat16).to(device), None)
    table = SlotTable(np.array([blocks - 1, 3, blocks - 2]), 16)
    relocate_spans({"a": donor}, [Span(8, "a", 5, 32)], pool, table, mla(True))
    moved = pool.keys[0][torch.from_numpy(table.blocks).to(device)].view(48, 64)
    assert torch.equal(moved[8:40].cpu(), mla(True).rotate(donor.keys[0, 5:37, 0].cpu(), 3))


def test_nothing_to_move_is_no_call(device: torch.device) -> None:
    shape = Shape("nhd", device=device)
    target = shape.pool()
    before = bits(target)
    relocate_spans({}, [], target, shape.table(), HALF)
    assert all(map(torch.equal, before, bits(target)))


SHAPE = Shape("nhd")
A = SHAPE.donors()["a"]
REFUSED: dict[str, tuple[dict[str, DonorKv], list[Span], list[int] | None, Rotation, str]] = {
    "another rotation": ({"a": A}, [Span(0, "a", 20, 4)], None, llama(64), "keys of 64"),
    "no such donor": ({"b": A}, [Span(0, "a", 20, 4)], None, HALF, "no such source"),
    "before the donor": ({"a": A}, [Span(0, "a", 19, 4)], None, HALF, "positions 20 to 110"),
    "behind the donor": ({"a": A}, [Span(0, "a", 100, 11)], None, HALF, "positions 20 to 110"),
    "behind the table": ({"a": A}, [Span(170, "a", 20, 11)], None, HALF, "outside the positions"),
    "overlap": ({"a": A}, [Span(10, "a", 20, 9), Span(2, "a", 50, 9)], None, HALF, "overlap"),
    "a block twice": ({"a": A}, [Span(10, "a", 20, 30)], [4, 5, 4], HALF, "twice"),
    "a block beyond": ({"a": A}, [Span(10, "a", 20, 30)], [4, 5, 22], HALF, "not in the pool"),
    "a type": ({"a": DonorKv(A.keys.float(), A.keys.float(), 20)}, [Span(0, "a", 20, 4)], None, HALF, "float32"),
    "layers": ({"a": DonorKv(A.keys[:1], A.keys[:1], 20)}, [Span(0, "a", 20, 4)], None, HALF, "1 layers"),
    "values": ({"a": DonorKv(A.keys, None, 20)}, [Span(0, "a", 20, 4)], None, HALF, "without values"),
    "heads": ({"a": DonorKv(A.keys[:, :, :1], A.keys[:, :, :1], 20)}, [Span(0, "a", 20, 4)], None, HALF, "heads"),
    "strides": (
        {"a": DonorKv(A.keys.transpose(2, 3).contiguous().transpose(2, 3), A.keys, 20)},
        [Span(0, "a", 20, 4)],
        None,
        HALF,
        "contiguous",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_before_anything_is_written(name: str) -> None:
    donors, spans, blocks, rotation, message = REFUSED[name]
    target = SHAPE.pool()
    before = bits(target)
    table = SHAPE.table() if blocks is None else SlotTable(np.array(blocks), SHAPE.block)
    with pytest.raises(InvalidKvError, match=message):
        relocate_spans(donors, spans, target, table, rotation)
    assert all(map(torch.equal, before, bits(target)))


def test_a_donor_in_the_pools_own_memory_is_refused() -> None:
    whole = torch.zeros(2, 2, 32, 2, 32)
    pool = PagedKv.from_slots(list(whole[0]), list(whole[1]))
    with pytest.raises(InvalidKvError, match="own memory"):
        relocate_spans(
            {"a": DonorKv(whole[0], whole[1])}, [Span(0, "a", 9, 4)], pool, SlotTable.of_slots(np.arange(32)), HALF
        )


def test_blocks_that_no_span_touches_may_be_anything() -> None:
    target, table = SHAPE.pool(), SHAPE.table()
    blocks = table.blocks.copy()
    blocks[[0, 2, -1]] = [-1, 10**6, blocks[1]]
    relocate_spans({"a": A}, [Span(20, "a", 20, 9), Span(48, "a", 40, 9)], target, SlotTable(blocks, 16), HALF)
