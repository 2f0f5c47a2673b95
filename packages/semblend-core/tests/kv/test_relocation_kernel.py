"""The kernel writes the bits that the torch reference writes, and compiles for a GPU to what it is meant to be.

It runs in Triton's interpreter, as a private copy of the module, so that other tests see the compiled one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from semblend_core import Span
from semblend_core.kv import triton_relocation
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.layout import PagedKv
from semblend_core.kv.moves import Moves, SlotTable
from semblend_core.kv.places import SpanMoves
from semblend_core.kv.relocation import check_relocation
from semblend_core.kv.rotation import Rotation
from semblend_core.kv.torch_relocation import relocate_with_torch

TORCH_TYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
}


@pytest.fixture(scope="module")
def interpreted(interpret: Callable[..., ModuleType]) -> ModuleType:
    return interpret("triton_rows", "triton_relocation")


@dataclass(frozen=True)
class Shape:
    """A pool to be made: sizes in blocks, tokens, heads and components."""

    blocks: int = 6
    block: int = 16
    heads: int = 2
    key: int = 64
    value: int = 64
    layers: int = 2
    dtype: torch.dtype = torch.bfloat16

    @property
    def slots(self) -> int:
        return self.blocks * self.block

    def random(self, *shape: int) -> list[Tensor]:
        return [(torch.randn(shape) * 2).to(self.dtype) for _ in range(self.layers)]


def nhd(s: Shape) -> PagedKv:
    return PagedKv.from_stacked(s.random(2, s.blocks, s.block, s.heads, s.key), 0)


def hnd(s: Shape) -> PagedKv:
    return PagedKv.from_stacked([t.transpose(2, 3) for t in s.random(2, s.blocks, s.heads, s.block, s.key)], 0)


def blocks_first_hnd(s: Shape) -> PagedKv:
    return PagedKv.from_stacked([t.transpose(2, 3) for t in s.random(s.blocks, 2, s.heads, s.block, s.key)], 1)


def joined(s: Shape) -> PagedKv:
    return PagedKv.from_joined(s.random(s.blocks, s.heads, s.block, s.key + s.value), s.key)


def slots(s: Shape) -> PagedKv:
    return PagedKv.from_slots(s.random(s.slots, s.heads, s.key), s.random(s.slots, s.heads, s.value))


def heads_first(s: Shape) -> PagedKv:
    """Each head's slots in a row of their own, as no engine does: strides are all that counts."""
    return PagedKv.from_slots(
        *([t.transpose(0, 1) for t in s.random(s.heads, s.slots, dim)] for dim in (s.key, s.value)), page_size=s.block
    )


def unaligned(s: Shape) -> PagedKv:
    """Layers in one buffer, at distances that no 16-byte load survives."""
    size = s.slots * s.heads * s.key + 1
    flat = (torch.randn(2 * s.layers * size) * 2).to(s.dtype)
    views = [flat[i * size + 1 : (i + 1) * size].view(s.blocks, s.block, s.heads, s.key) for i in range(2 * s.layers)]
    return PagedKv(tuple(views[: s.layers]), tuple(views[s.layers :]))


def dense(s: Shape) -> PagedKv:
    keys, values = (torch.stack(s.random(s.slots, s.heads, dim)) for dim in (s.key, s.value))
    return PagedKv.from_donor(DonorKv(keys, values))


def latent(s: Shape) -> PagedKv:
    return PagedKv.from_latent(s.random(s.blocks, s.block, s.key))


def llama(dim: int, interleaved: bool = False, **fields: Any) -> Rotation:
    return Rotation.from_config({"model_type": "llama", "head_dim": dim, **fields}, interleaved=interleaved)


MLA = Rotation.from_config({"model_type": "deepseek_v3", "kv_lora_rank": 96, "qk_rope_head_dim": 32})
MLA_HALF = Rotation.from_config(
    {"model_type": "deepseek_v3", "kv_lora_rank": 96, "qk_rope_head_dim": 32, "rope_interleave": False}
)
Maker = Callable[[Shape], PagedKv]
Case = tuple[Maker, Maker, Shape, Rotation]
CASES: dict[str, Case] = {
    **{str(dtype): (nhd, hnd, Shape(dtype=dtype), llama(64)) for dtype in TORCH_TYPES.values()},
    **{f"{dtype} interleaved": (joined, nhd, Shape(dtype=dtype), llama(64, True)) for dtype in TORCH_TYPES.values()},
    "hnd to K|V rows": (hnd, joined, Shape(), llama(64)),
    "K|V rows to blocks first": (joined, blocks_first_hnd, Shape(), llama(64)),
    "block 1": (slots, nhd, Shape(blocks=96, block=1), llama(64)),
    "block 32": (hnd, joined, Shape(blocks=3, block=32), llama(64)),
    "block 20, no power of two": (hnd, joined, Shape(blocks=5, block=20), llama(64)),
    "dense donor": (dense, joined, Shape(), llama(64)),
    "heads first": (heads_first, heads_first, Shape(), llama(64)),
    "unaligned": (unaligned, unaligned, Shape(), llama(64)),
    "three heads of 80": (nhd, hnd, Shape(heads=3, key=80, value=80), llama(80)),
    "value narrower than key": (joined, slots, Shape(key=96, value=64), llama(96)),
    "partial": (nhd, joined, Shape(), llama(64, partial_rotary_factor=0.5)),
    "partial of 24": (nhd, joined, Shape(), llama(64, partial_rotary_factor=0.375)),
    "partial interleaved": (nhd, joined, Shape(), llama(64, True, partial_rotary_factor=0.25)),
    "MLA": (latent, latent, Shape(key=128), MLA),
    "MLA half-split": (latent, latent, Shape(key=128), MLA_HALF),
    "MLA fp8": (latent, latent, Shape(key=128, dtype=torch.float8_e4m3fn), MLA),
}
SPANS = [Span(1, "d", 33, 20), Span(21, "d", 0, 1), Span(30, "d", 30, 9), Span(40, "d", 17, 33), Span(75, "d", 80, 15)]


def moves_between(source: PagedKv, target: PagedKv, rotation: Rotation, spans: list[Span] = SPANS) -> Moves:
    random = np.random.default_rng(5)
    tables = [SlotTable(random.permutation(pool.keys[0].shape[0]), pool.block_size) for pool in (source, target)]
    moves = Moves.build(spans, sources={"d": tables[0]}, target=tables[1])
    check_relocation(source, target, moves, rotation)
    return moves


def bits(pool: PagedKv) -> list[Tensor]:
    return [view.clone(memory_format=torch.contiguous_format).view(torch.uint8) for view in pool.keys + pool.values]


def check_same_bits(
    interpreted: ModuleType, source: PagedKv, make_target: Callable[[], PagedKv], moves: Moves, rotation: Rotation
) -> None:
    results = []
    for relocator, how in (
        (interpreted.relocate_with_triton, SpanMoves.of_tokens(moves)),
        (relocate_with_torch, moves),
    ):
        torch.manual_seed(9)
        target = make_target()
        before = bits(target)
        relocator(source, target, how, rotation)
        results.append(bits(target))
    assert any(not torch.equal(old, new) for old, new in zip(before, results[1], strict=True))
    for got, wanted in zip(*results, strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_writes_the_bits_of_the_reference(name: str, interpreted: ModuleType) -> None:
    make_source, make_target, shape, rotation = CASES[name]
    torch.manual_seed(0)
    source = make_source(shape)
    moves = moves_between(source, make_target(shape), rotation)
    check_same_bits(interpreted, source, lambda: make_target(shape), moves, rotation)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize(
    ("source_scales", "target_scales"),
    [((0.5, 0.25), (0.5, 0.25)), ((0.5, 0.25), (0.125, 0.25)), ((0.37, 0.11), (0.05, 0.9)), ((1.0, 1.0), (1e-5, 1e-5))],
)
def test_fp8_scales_change_the_same_bits(
    dtype: torch.dtype, source_scales: tuple[float, float], target_scales: tuple[float, float], interpreted: ModuleType
) -> None:
    shape, rotation = Shape(dtype=dtype), llama(64, partial_rotary_factor=0.5)

    def scaled(pool: PagedKv, scales: tuple[float, float]) -> PagedKv:
        return pool.with_scales(*((scale, 2 * scale) for scale in scales))

    torch.manual_seed(0)
    source = scaled(nhd(shape), source_scales)
    moves = moves_between(source, joined(shape), rotation)
    check_same_bits(interpreted, source, lambda: scaled(joined(shape), target_scales), moves, rotation)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # From the interpreter's numpy.
@pytest.mark.parametrize("scales", [(1.0, 1.0), (1e37, 1e-3)], ids=["as stored", "overflowing float32"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_that_is_not_finite_moves_as_in_the_reference(
    dtype: torch.dtype, scales: tuple[float, float], interpreted: ModuleType
) -> None:
    shape, rotation = Shape(dtype=dtype, layers=1), llama(64, partial_rotary_factor=0.5)
    torch.manual_seed(0)
    source = nhd(shape)
    for view in source.keys + source.values:
        view[:, ::3, 0, ::5] = float("nan")
        view[:, ::3, 1, ::7] = float("inf")  # NaN in e4m3, which has no infinity.
    source, target, reference = (
        pool.with_scales((scale,), (scale,))
        for pool, scale in ((source, scales[0]), (nhd(shape), scales[1]), (nhd(shape), scales[1]))
    )
    moves = moves_between(source, target, rotation)
    interpreted.relocate_with_triton(source, target, SpanMoves.of_tokens(moves), rotation)
    relocate_with_torch(source, reference, moves, rotation)
    block, offset = np.divmod(moves.target_slots, shape.block)
    for got, wanted in zip(target.keys + target.values, reference.keys + reference.values, strict=True):
        moved, expected = (view.float()[block, offset] for view in (got, wanted))
        assert torch.equal(moved.isnan(), expected.isnan())
        assert moved.isnan().any()
        assert torch.equal(moved.nan_to_num(), expected.nan_to_num())


def test_what_a_launch_needs_to_know_of_its_pools_is_one_upload() -> None:
    shape = Shape(layers=3, dtype=torch.float8_e4m3fn)
    source, target = nhd(shape).with_scales((0.5, 0.25, 2.0)), joined(shape).with_scales(None, (4.0, 1.0, 8.0))
    moves = SpanMoves.of_tokens(moves_between(source, target, llama(64)))
    _, arguments = triton_relocation.launch_arguments(source, target, moves, llama(64))
    uploaded = ("target_starts", "target_scales", "target_blocks", "sources", "source_starts", "source_scales")
    parts = [arguments[name] for name in (*uploaded, "source_blocks", "spans", "tile_spans", "cos_table", "sin_table")]
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
    assert all(part.data_ptr() % 16 == parts[0].data_ptr() % 16 for part in parts)
    starts, scales, _, (place,), source_starts, source_scales, *_ = parts
    for found, unit, pool in ((starts, target.layer_unit, target), (source_starts, arguments["SOURCE_UNIT"], source)):
        layers = [view.data_ptr() - pool.keys[0].data_ptr() for view in pool.keys]
        assert (found[0] * unit).tolist() == layers
    assert place[:, 0].tolist() == [source.keys[0].data_ptr(), source.values[0].data_ptr()]
    assert source_scales.tolist() == [[0.5, 0.25, 2.0], [1, 1, 1], [2.0, 4.0, 0.5], [1, 1, 1]]
    assert scales[3].tolist() == [0.25, 1.0, 0.125]


def test_many_spans_move_in_one_launch(interpreted: ModuleType) -> None:
    torch.manual_seed(0)
    shape = Shape(blocks=32, layers=1)
    source = nhd(shape)
    spans = [Span(8 * i, "d", (8 * i * 5 + 3) % 500, 7) for i in range(64)]
    moves = moves_between(source, joined(shape), llama(64), spans)
    assert moves.shifts.size > 50
    check_same_bits(interpreted, source, lambda: joined(shape), moves, llama(64))


@pytest.mark.parametrize("tile_bytes", [1, 256, 65536])
def test_the_tile_changes_nothing_but_speed(tile_bytes: int, interpreted: ModuleType) -> None:
    torch.manual_seed(0)
    shape = Shape(layers=1)
    source, target = nhd(shape), hnd(shape)
    reference = PagedKv.from_stacked([torch.stack((target.keys[0], target.values[0]))], 0)
    moves = moves_between(source, target, llama(64), SPANS[:2])
    launch = interpreted.launch_arguments(source, target, SpanMoves.of_tokens(moves), llama(64), tile_bytes)
    interpreted.launch(*launch, target.device)
    relocate_with_torch(source, reference, moves, llama(64))
    assert all(map(torch.equal, bits(target), bits(reference)))


Compile = Callable[[Any, dict[str, Any]], str]


def relocation_ptx(compile_kernel: Compile, source: PagedKv, target: PagedKv, rotation: Rotation) -> str:
    moves = SpanMoves.of_tokens(moves_between(source, target, rotation))
    _, arguments = triton_relocation.launch_arguments(source, target, moves, rotation)
    return compile_kernel(triton_relocation.relocation_kernel, arguments)


@pytest.mark.parametrize("make", [nhd, hnd, joined, dense])
@pytest.mark.parametrize("interleaved", [False, True])
def test_for_a_gpu_it_moves_16_bytes_at_a_time_and_fuses_no_rounding(
    make: Maker, interleaved: bool, ptx_for_hopper: Compile
) -> None:
    shape = Shape(key=128, value=128, heads=4)
    ptx = relocation_ptx(ptx_for_hopper, make(shape), joined(shape), llama(128, interleaved))
    assert ptx.count("st.global.v4.b32") == ptx.count("st.global")
    assert ptx.count("ld.global.v4.b32") >= 2 * ptx.count("st.global.v4.b32") - ptx.count("cvt.rn.bf16.f32") // 8
    assert "fma." not in ptx
    assert "shared" not in ptx


@pytest.mark.parametrize("dtype", TORCH_TYPES.values())
def test_it_compiles_for_every_type(dtype: torch.dtype, ptx_for_hopper: Compile) -> None:
    shape = Shape(dtype=dtype)
    ptx = relocation_ptx(ptx_for_hopper, nhd(shape), nhd(shape), llama(64, partial_rotary_factor=0.5))
    assert "fma." not in ptx
    assert ("min.NaN.f32" in ptx) == ("max.NaN.f32" in ptx) == (dtype.itemsize == 1), "fp8 saturates and keeps NaN"
    assert "min.f32" not in ptx
    assert "max.f32" not in ptx


def test_slots_whose_numbers_stay_on_the_device_are_moved_alike(interpreted: ModuleType) -> None:
    shape, rotation = Shape(blocks=200, block=1, dtype=torch.float32), llama(64)
    pool, reference = (slots(shape) for _ in range(2))
    for ours, theirs in zip(pool.keys + pool.values, reference.keys + reference.values, strict=True):
        theirs.copy_(ours)
    order = torch.randperm(shape.slots)
    sources = {"a": order[:40], "b": order[40:90]}
    spans = [Span(12, "b", 5, 30), Span(45, "a", 0, 17), Span(62, "b", 40, 10)]
    target = order[90:170]
    moves = SpanMoves.of_slots(spans, sources, target, first_position=10)
    interpreted.relocate_with_triton(pool, pool, moves, rotation)
    tables = {donor: SlotTable.of_slots(numbers.numpy()) for donor, numbers in sources.items()}
    by_numbers = Moves.build(spans, sources=tables, target=SlotTable.of_slots(target.numpy(), first_position=10))
    relocate_with_torch(reference, reference, by_numbers, rotation)
    for got, wanted in zip(pool.keys + pool.values, reference.keys + reference.values, strict=True):
        assert torch.equal(got, wanted)
