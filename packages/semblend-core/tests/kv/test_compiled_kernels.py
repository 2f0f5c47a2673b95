"""What the kernels of a forward are when compiled for a GPU, and that there nothing waits or compiles twice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra `gpu`")
pytest.importorskip("triton", reason="needs the extra `gpu`")

import torch

from semblend_core import Span
from semblend_core.kv import DonorKv, PagedKv, PagedMeanShift, Rotation, SlotTable, relocate_spans, triton_relocation
from semblend_core.kv import triton_mean_shift_kernels as mean_shift_kernels
from semblend_core.kv import triton_row_weights_kernels as weights_kernels
from semblend_core.kv.mean_shift import MeasuredSpans
from semblend_core.kv.moves import resident_angles
from semblend_core.kv.places import Places, SpanMoves
from semblend_core.kv.triton_mean_shift import Preparation
from semblend_core.recompute import MeanShift

if TYPE_CHECKING:
    from collections.abc import Iterator

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CPU, GPU = torch.device("cpu"), torch.device("cuda")
LAYERS, BLOCKS, BLOCK, DIM = 2, 12, 16, 128
TABLE = SlotTable(np.random.default_rng(1).permutation(BLOCKS), BLOCK)
SPANS = [Span(3, "a", 33, 20), Span(40, "b", 17, 60), Span(101, "a", 45, 45)]
ROWS = np.arange(5, 140, 4)
LAYOUTS = ["nhd", "hnd", "joined"]
WEIGHED = MeanShift(0.6, 1, 0.4, reach=32, likeness=3)
Compile = Callable[[Any, dict[str, Any]], str]


def rotation(interleaved: bool = False) -> Rotation:
    return Rotation.from_config({"model_type": "llama", "head_dim": DIM}, interleaved=interleaved)


def pool(layout: str, device: torch.device = CPU, heads: int = 4, dtype: torch.dtype = torch.bfloat16) -> PagedKv:
    def zeros(*shape: int) -> list[torch.Tensor]:
        return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(LAYERS)]

    if layout == "nhd":
        return PagedKv.from_stacked(zeros(2, BLOCKS, BLOCK, heads, DIM), 0)
    if layout == "hnd":
        return PagedKv.from_stacked([t.transpose(2, 3) for t in zeros(BLOCKS, 2, heads, BLOCK, DIM)], 1)
    return PagedKv.from_joined(zeros(BLOCKS, heads, BLOCK, 2 * DIM), DIM)


def donor(device: torch.device = CPU, heads: int = 4, dtype: torch.dtype = torch.bfloat16) -> DonorKv:
    """A part of a larger allocation, as a store hands it out."""
    keys, values = (torch.zeros(LAYERS, 110, heads, DIM, dtype=dtype, device=device)[:, 5:] for _ in "kv")
    return DonorKv(keys, values)


def prepared(shift: MeanShift, kv: PagedKv, turning: Rotation) -> Preparation:
    measured = MeasuredSpans.choose(shift, SPANS, ROWS)
    return Preparation(measured, Places.find(measured.spans, TABLE, kv), kv, turning)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_mean_shift_moves_16_bytes_at_a_time(layout: str, interleaved: bool, ptx_for_hopper: Compile) -> None:
    kv = pool(layout)
    plan = prepared(MeanShift(), kv, rotation(interleaved))
    keep, measure, mean, correct = (
        ptx_for_hopper(kernel, arguments | {"layer": 1})
        for kernel, _, arguments in (plan.keeping(), *plan.of_each_layer())
    )
    assert keep.count("ld.global.v4.b32") == keep.count("st.global") == 2 * 4
    # Of 8 KiB of keys and 8 KiB of values, 128 threads take 64 bytes each: of fresh and of old KV, and cos and sin.
    assert measure.count("ld.global.v4.b32") == 4 * 4 + 8
    assert mean.count("ld.global.v4.b32") > 0
    assert correct.count("st.global.v4.b32") == correct.count("st.global") == 2 * 4
    assert correct.count("ld.global.v4.b32") == 2 * 4 + 8 + 16  # Means of spans are float32, like cos and sin.
    assert "shared" not in correct
    assert not any("fma." in ptx for ptx in (measure, mean, correct))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_means_of_weighed_rows_are_made_on_tensor_cores_but_for_float32(
    dtype: torch.dtype, ptx_for_hopper: Compile
) -> None:
    kv = pool("joined", dtype=dtype)
    plan = prepared(WEIGHED, kv, rotation())
    front, common, direct, ask, measure, choose, weigh, correct = (
        ptx_for_hopper(kernel, arguments | {"layer": 1})
        for kernel, _, arguments in (*plan.asking(), *plan.of_each_layer())
    )
    assert all("st.global.v4.b32" in ptx for ptx in (front, direct))
    assert "ld.global.v4.b32" in common
    assert "fma." not in front
    assert all("ld.global.v4.b32" in ptx for ptx in (choose, correct))
    assert "cp.async.cg.shared.global" in weigh  # 16 bytes, while the pieces before them are multiplied.
    assert ("mma" in weigh) is (dtype is torch.bfloat16)
    assert "atom." not in front + common + direct + ask + measure + choose + weigh + correct


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("scales", [None, (0.5, 0.25)], ids=["unscaled", "scaled"])
def test_fp8_is_corrected_16_bytes_at_a_time_and_saturates(
    dtype: torch.dtype, scales: tuple[float, ...] | None, ptx_for_hopper: Compile
) -> None:
    kv = pool("joined", dtype=dtype).with_scales(scales, scales)
    for shift in (MeanShift(), WEIGHED):
        plan = prepared(shift, kv, rotation())
        keep, measure, *_, correct = (
            ptx_for_hopper(kernel, arguments | {"layer": 1})
            for kernel, _, arguments in (plan.keeping(), *plan.of_each_layer())
        )
        assert keep.count("st.global.v4.b32") == keep.count("st.global")
        assert correct.count("st.global.v4.b32") == correct.count("st.global")
        assert "min.NaN.f32" in correct
        assert "max.NaN.f32" in correct
        assert not any("fma." in ptx for ptx in (measure, correct))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_spans_move_16_bytes_at_a_time(layout: str, interleaved: bool, ptx_for_hopper: Compile) -> None:
    kv, one = pool(layout), np.array([4])
    places = Places.find(SPANS[:1], TABLE, kv)
    moves = SpanMoves.of_spans(places, one * 0, one, one)
    grid, arguments = triton_relocation.launch_arguments([donor()], kv, moves, rotation(interleaved))
    assert grid == (5, LAYERS)  # 20 tokens of 4 heads, 16 at a time.
    ptx = ptx_for_hopper(triton_relocation.relocation_kernel, arguments)
    assert ptx.count("st.global.v4.b32") == ptx.count("st.global") == 2 * 2
    assert ptx.count("ld.global.v4.b32") == 2 * 2 + 4
    assert "fma." not in ptx
    assert "shared" not in ptx


def test_tables_of_angles_grow_and_have_the_rotations_numbers() -> None:
    turning = rotation()
    for positions in (10, 5000):
        cos, sin = resident_angles(turning, CPU, positions)
        assert cos.shape[0] >= positions
        wanted = turning.cos_sin(np.arange(cos.shape[0]))
        torch.testing.assert_close(cos, wanted[0], rtol=0, atol=1e-7)
        torch.testing.assert_close(sin, wanted[1], rtol=0, atol=1e-7)
    assert resident_angles(turning, CPU, 1)[0] is cos


# --- On a GPU ------------------------------------------------------------------------------------------------------


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def variants(*kernels: Any) -> list[int]:
    """How often each was compiled."""
    return [len(kernel.device_caches[torch.cuda.current_device()][0]) for kernel in kernels]


@needs_gpu
@pytest.mark.parametrize("shift", [MeanShift(0.5, 1), WEIGHED])
def test_on_a_gpu_mean_shift_never_waits_and_compiles_once_for_a_pool(shift: MeanShift) -> None:
    kv, turning = pool("joined", GPU, heads=5), rotation()
    compiled = []
    for length, rows in ((2, 1), (17, 4), (33, 16), (128, 32), (160, 100)):
        with no_waiting():
            span = [Span(8, "a", 0, length)]
            correction = PagedMeanShift(shift, span, np.arange(8, 8 + rows), kv, TABLE, turning)
            for layer in range(LAYERS):
                correction.apply(layer)
        names = ("keep", "measure", "mean", "choose", "weigh", "correct")
        kernels = [getattr(mean_shift_kernels, f"{name}_kernel") for name in names]
        asking = [getattr(weights_kernels, f"{name}_kernel") for name in ("front", "direct", "ask")]
        compiled.append(variants(*kernels, *asking))
    assert compiled == [compiled[0]] * len(compiled)


@needs_gpu
def test_on_a_gpu_spans_never_wait_and_compile_once_for_a_pool() -> None:
    kv, turning = pool("joined", GPU, heads=5), rotation()
    donors = {name: donor(GPU, heads=5) for name in "ab"}
    compiled = []
    for spans in ([Span(0, "b", 0, 1)], SPANS[:1], SPANS, [Span(16, "b", 16, 64)]):
        with no_waiting():
            relocate_spans(donors, spans, kv, TABLE, turning)
        compiled.append(variants(triton_relocation.relocation_kernel))
    assert compiled == [compiled[0]] * len(compiled)
