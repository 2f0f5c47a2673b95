"""Mean shift in a pool does what MeanShiftCorrection does to KV in one piece, in torch, in the kernels, on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from semblend_core.kv import (
    DeviceSlots,
    InvalidKvError,
    MeanShiftCorrection,
    PagedKv,
    PagedMeanShift,
    Rotation,
    SlotTable,
    middle_layer,
    pieces,
    relocation,
    row_shift,
)
from semblend_core.kv import paged_mean_shift as module
from semblend_core.kv.donor_kv import indexable
from semblend_core.kv.equal_tokens import FINEST
from semblend_core.kv.layout import narrow
from semblend_core.recompute import MeanShift

CPU = torch.device("cpu")
SPANS = [Span(21, "a", 300, 50), Span(75, "b", 5, 40), Span(118, "c", 0, 3), Span(121, "c", 9, 31)]
ROWS = np.array([5, 16, 21, 22, 30, 41, 42, 58, 70, 72, 80, 81, 95, 114, 118, 121, 130, 131, 132, 151, 160])
TOKENS = 176
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PATHS = ["torch", "interpreter", pytest.param("cuda", marks=needs_gpu)]


@pytest.fixture(scope="module")
def interpreted(interpret: Callable[..., ModuleType]) -> ModuleType:
    kernels = ("triton_rows", "triton_mean_shift_kernels", "triton_row_weights_kernels")
    return interpret(*kernels, "triton_row_weights", "triton_mean_shift")


@pytest.fixture(params=PATHS)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "interpreter":
            shift = request.getfixturevalue("interpreted").TritonMeanShift
            patch.setattr(module, "_with_kernels", lambda *arguments: shift(*arguments))
            patch.setattr(module, "has_kernel", lambda *_: True)
        yield torch.device("cuda" if request.param == "cuda" else "cpu")


def llama(dim: int, interleaved: bool = False, **fields: Any) -> Rotation:
    return Rotation.from_config({"model_type": "llama", "head_dim": dim, **fields}, interleaved=interleaved)


def mla(interleaved: bool) -> Rotation:
    fields = {"model_type": "deepseek_v3", "kv_lora_rank": 40, "qk_rope_head_dim": 24, "rope_interleave": interleaved}
    return Rotation.from_config(fields)


class Pool:
    """A pool in one of the engines' layouts, twice as large as one sequence, whose blocks lie in it in any order."""

    def __init__(
        self,
        layout: str,
        device: torch.device,
        *,
        block: int = 16,
        heads: int = 2,
        key: int = 32,
        value: int = 32,
        dtype: torch.dtype = torch.float32,
        layers: int = 2,
        table_block: int | None = None,
        scales: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
    ) -> None:
        torch.manual_seed(2)
        blocks = 2 * -(-TOKENS // block)

        def random(*shape: int) -> list[Tensor]:
            return [torch.randn(shape).to(dtype).to(device) for _ in range(layers)]

        if layout == "nhd":
            self.kv = PagedKv.from_stacked(random(2, blocks, block, heads, key), 0)
        elif layout == "hnd":
            self.kv = PagedKv.from_stacked([t.transpose(2, 3) for t in random(blocks, 2, heads, block, key)], 1)
        elif layout == "joined":
            self.kv = PagedKv.from_joined(random(blocks, heads, block, key + value), key)
        elif layout == "latent":
            self.kv = PagedKv.from_latent(random(blocks, block, key))
        elif layout == "slots":
            sizes = ((blocks * block, heads, dim) for dim in (key, value))
            keys, values = (random(*size) for size in sizes)
            self.kv = PagedKv.from_slots(keys, values, page_size=block)
        else:
            assert layout == "unaligned"
            size = blocks * block * heads * key + 1
            flat = torch.randn(2 * layers * size).to(dtype).to(device)
            views = [flat[i * size + 1 : (i + 1) * size].view(blocks, block, heads, key) for i in range(2 * layers)]
            self.kv = PagedKv(tuple(views[:layers]), tuple(views[layers:]))
        if scales is not None:
            self.kv = self.kv.with_scales(*scales)
        order = np.random.default_rng(4).permutation(blocks)
        self.table = SlotTable(order[: blocks // 2], block)
        if table_block is not None:
            self.table = SlotTable(self.table.slots_of(np.arange(TOKENS)), 1)

    def sequence(self, views: tuple[Tensor, ...], layer: int) -> Tensor:
        """A float32 copy of the sequence's tokens, by position, as they were computed."""
        slots = torch.from_numpy(self.table.slots_of(np.arange(TOKENS)))
        stored = views[layer].detach().float().cpu()[slots // self.kv.block_size, slots % self.kv.block_size]
        return stored * self.scale(views, layer)

    def scale(self, views: tuple[Tensor, ...], layer: int) -> float:
        scales = self.kv.key_scales if views is self.kv.keys else self.kv.value_scales
        return 1.0 if scales is None else scales[layer]

    def everything(self) -> list[Tensor]:
        return [indexable(view.detach().cpu().clone()) for view in self.kv.keys + self.kv.values]

    def compute_rows(self, rows: np.ndarray[Any, Any]) -> None:
        """As a forward does: other KV at the rows, more alike within a span than at random."""
        slots = self.table.slots_of(rows)
        at = tuple(torch.from_numpy(part).to(self.kv.device) for part in np.divmod(slots, self.kv.block_size))
        for view in self.kv.keys + self.kv.values:
            old = indexable(view)[at].view(view.dtype).float()
            fresh = old + 0.7 + torch.randn(old.shape).to(view.device)
            indexable(view)[at] = indexable(fresh.to(view.dtype))


BY_TENSOR_CORES = 2e-3
"""What means of changes of about 1 are off by, where their products are rounded to 11 bits."""


def check(
    pool: Pool, rotation: Rotation, shift: MeanShift, spans: list[Span], rows: np.ndarray[Any, Any]
) -> list[Tensor]:
    """Correct every layer, and compare everything in the pool with the reference; returns what is in the pool."""
    layers, kv = range(pool.kv.layers), pool.kv
    parts = [kv.keys, kv.values] if kv.values else [kv.keys]
    old = [[pool.sequence(views, layer)[rows] for views in parts] for layer in layers]
    middle = [pool.sequence(views, middle_layer(kv.layers)) for views in parts]
    paged = PagedMeanShift(shift, spans, rows, kv, pool.table, rotation)
    pool.compute_rows(rows)
    before = pool.everything()
    fresh = [[pool.sequence(views, layer) for views in parts] for layer in layers]
    middle += [middle[0][..., :0]] if len(parts) == 1 else []
    reference = MeanShiftCorrection(shift, spans, rows, rotation, (middle[0], middle[1]))
    for layer in layers:
        paged.apply(layer)
    finished = pool.everything()
    inside = np.concatenate([np.arange(span.target_start, span.target_end) for span in spans])
    slots = pool.table.slots_of(np.setdiff1d(inside, rows))
    corrected = np.zeros(kv.slots, np.bool_)
    corrected[slots] = True
    others = torch.from_numpy(~corrected).view(-1, kv.block_size)
    assert all(torch.equal(was[others], now[others]) for was, now in zip(before, finished, strict=True))
    step = torch.finfo(kv.dtype).eps
    finest = FINEST.get(kv.dtype, 4e-6)
    if shift.weighs_rows and module.has_kernel(kv.device, kv.dtype) and kv.dtype is not torch.float32:
        finest = max(finest, BY_TENSOR_CORES)
    for layer in layers:
        wanted = [part.clone() for part in fresh[layer]]
        nothing = wanted[0][..., :0], old[layer][0][..., :0]
        values, old_values = (wanted[1], old[layer][1]) if len(parts) == 2 else nothing
        reference.apply(layer, wanted[0], values, old[layer][0], old_values)
        for views, expected in zip(parts, wanted, strict=True):
            atol = finest * pool.scale(views, layer)
            torch.testing.assert_close(pool.sequence(views, layer), expected, rtol=step, atol=atol)
    return finished


HALF, PAIRS = llama(32), llama(32, True)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SCALES = ((0.37, 0.011), (0.9, 2.5))
CASES: dict[str, tuple[dict[str, Any], Rotation]] = {
    "float32": ({"layout": "nhd"}, HALF),
    "bfloat16": ({"layout": "joined", "dtype": torch.bfloat16}, HALF),
    "float16": ({"layout": "hnd", "dtype": torch.float16}, HALF),
    "interleaved": ({"layout": "hnd"}, PAIRS),
    "interleaved bfloat16": ({"layout": "joined", "dtype": torch.bfloat16}, PAIRS),
    "partial": ({"layout": "nhd"}, llama(32, partial_rotary_factor=0.5)),
    "partial of 12, interleaved": ({"layout": "nhd"}, llama(32, True, partial_rotary_factor=0.375)),
    "block 1": ({"layout": "slots", "block": 1}, HALF),
    "block 20": ({"layout": "hnd", "block": 20}, HALF),
    "a page of 16, one slot per token": ({"layout": "slots", "table_block": 1}, HALF),
    "three heads of 20": ({"layout": "joined", "heads": 3, "key": 20, "value": 20}, llama(20)),
    "value narrower than key": ({"layout": "joined", "key": 48, "value": 32}, llama(48)),
    "value wider than key": ({"layout": "slots", "key": 24, "value": 40}, llama(24)),
    "unaligned": ({"layout": "unaligned", "dtype": torch.bfloat16}, HALF),
    "MLA": ({"layout": "latent", "key": 64, "dtype": torch.bfloat16}, mla(True)),
    "fp8": ({"layout": "joined", "dtype": E4M3}, HALF),
    "fp8 e5m2, interleaved": ({"layout": "hnd", "dtype": E5M2}, PAIRS),
    "fp8 with scales": ({"layout": "joined", "dtype": E4M3, "scales": SCALES}, HALF),
    "fp8 with scales, partial": (
        {"layout": "slots", "dtype": E5M2, "scales": SCALES},
        llama(32, partial_rotary_factor=0.5),
    ),
    "MLA half-split": ({"layout": "latent", "key": 64}, mla(False)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_corrects_a_pool_as_the_reference_corrects_a_sequence(name: str, device: torch.device) -> None:
    shape, rotation = CASES[name]
    pool = Pool(device=device, **shape)
    check(pool, rotation, MeanShift(), SPANS, ROWS)


WEIGHED = MeanShift(0.6, 4, 0.4, reach=24, likeness=4)
SHAPES = (
    *("float32", "bfloat16", "partial of 12, interleaved", "three heads of 20", "value wider than key", "MLA"),
    *("fp8", "fp8 with scales", "fp8 with scales, partial"),
)


@pytest.mark.parametrize("name", SHAPES)
def test_rows_that_each_token_weighs_correct_a_pool_as_they_correct_a_sequence(name: str, device: torch.device) -> None:
    shape, rotation = CASES[name]
    check(Pool(device=device, **shape), rotation, WEIGHED, SPANS, ROWS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_rows_and_tokens_are_weighed_in_pieces(dtype: torch.dtype, device: torch.device) -> None:
    rows = np.setdiff1d(np.arange(10, 170), np.arange(12, 170, 2))
    check(Pool("joined", device, dtype=dtype), HALF, WEIGHED, [Span(10, "a", 0, 160)], rows)


def test_where_weights_would_be_too_many_the_kernels_ask_fewer_rows_too(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_shift, "MOST_WEIGHTS", 300)
    monkeypatch.setattr(pieces, "LEAST_ASKED", 2)
    check(Pool("nhd", device), HALF, WEIGHED, SPANS, ROWS)


@pytest.mark.parametrize("broken", [float("inf"), float("nan")])
def test_what_is_not_finite_in_one_row_is_not_spread_over_its_span(broken: float, device: torch.device) -> None:
    pool = Pool("nhd", device)
    paged = PagedMeanShift(WEIGHED, SPANS, ROWS, pool.kv, pool.table, HALF)
    pool.compute_rows(ROWS)
    where = pool.table.slots_of(np.array([42]))[0]
    pool.kv.values[0][where // 16, where % 16, 0, 3] = broken
    before = pool.sequence(pool.kv.values, 0)
    paged.apply(0)
    after = pool.sequence(pool.kv.values, 0)
    others = np.setdiff1d(np.arange(21, 71), ROWS)
    assert after[others].isfinite().all()
    assert 0 < float((after - before)[others].abs().max()) < 10


@pytest.mark.parametrize("name", ["float32", "fp8 with scales"])
def test_what_the_kernels_do_not_know_is_corrected_by_torch(name: str, device: torch.device) -> None:
    shape, rotation = CASES[name]
    check(Pool(device=device, **shape), rotation, MeanShift(0.6, value_strength=0.4), SPANS, ROWS)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("shift", [MeanShift(), WEIGHED], ids=["plain", "weighed"])
def test_fp8_is_corrected_in_float32_and_rounded_once(
    dtype: torch.dtype, shift: MeanShift, device: torch.device
) -> None:
    """To the bit, but for ties: means of fp8 numbers often lie in the middle between two, up to float32's rounding.

    Where tokens weigh rows, means have 16 bits in the kernels, and more lie there.
    """
    pool = Pool("joined", device, dtype=dtype, scales=SCALES)
    rows, kv = torch.from_numpy(ROWS), pool.kv
    old = [[pool.sequence(views, layer)[rows] for views in (kv.keys, kv.values)] for layer in range(2)]
    middle = pool.sequence(kv.keys, 1), pool.sequence(kv.values, 1)
    paged = PagedMeanShift(shift, SPANS, ROWS, kv, pool.table, HALF)
    pool.compute_rows(ROWS)
    reference, same, all_of_them = MeanShiftCorrection(shift, SPANS, ROWS, HALF, middle), 0, 0
    for layer in range(2):
        wanted = [pool.sequence(views, layer) for views in (kv.keys, kv.values)]
        paged.apply(layer)
        reference.apply(layer, *wanted, *old[layer])
        for views, expected in zip((kv.keys, kv.values), wanted, strict=True):
            scale = pool.scale(views, layer)
            rounded = narrow(expected / scale, dtype).float() * scale
            same += int((pool.sequence(views, layer) == rounded).sum())
            all_of_them += rounded.numel()
    assert same > (0.995 if shift.weighs_rows else 0.998) * all_of_them


def test_spans_with_too_few_rows_or_nothing_else_stay_as_they_are(device: torch.device) -> None:
    rows = np.r_[22:30, 76:79, 118:121]
    pool = Pool("nhd", device)
    before = pool.everything()
    after = check(pool, HALF, MeanShift(1.0, min_rows=3), [SPANS[0], SPANS[2]], rows)
    assert not all(map(torch.equal, before, after))
    pool = Pool("nhd", device)
    paged = PagedMeanShift(MeanShift(1.0, min_rows=4), SPANS[1:3], rows, pool.kv, pool.table, HALF)
    paged.apply(0)
    assert all(map(torch.equal, before, pool.everything()))


def test_many_rows_are_added_up_in_the_same_order_every_time(device: torch.device) -> None:
    rows = np.setdiff1d(np.arange(10, 170), np.arange(12, 170, 7))[::-1].copy()
    spans = [Span(10, "a", 0, 160)]
    results = [check(Pool("joined", device, dtype=torch.float16), HALF, MeanShift(0.5), spans, rows) for _ in range(2)]
    assert all(map(torch.equal, *results))


def test_a_sequence_need_not_begin_at_position_0(device: torch.device) -> None:
    pool = Pool("nhd", device)
    plain = check(pool, HALF, MeanShift(), SPANS, ROWS)
    later = Pool("nhd", device)
    table = SlotTable(later.table.blocks[1:], 16, first_position=1016)
    spans = [Span(s.target_start + 1000, s.donor_id, s.donor_start, s.length) for s in SPANS]
    inside = ROWS[ROWS >= 16]
    paged = PagedMeanShift(MeanShift(), spans, inside + 1000, later.kv, table, HALF)
    torch.manual_seed(2)
    Pool("nhd", device)  # Random numbers of the first pool, again.
    later.compute_rows(ROWS)
    for layer in range(2):
        paged.apply(layer)
    for got, wanted in zip(later.everything(), plain, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=4e-6)


@pytest.fixture
def slots_stay_on_the_device(
    device: torch.device, interpret: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where kernels run, nobody may ask for the numbers; the interpreter's part of it is all on the CPU."""
    if module._with_kernels.__name__ == "<lambda>":
        relocating = interpret("triton_rows", "triton_relocation").relocate_with_triton
        monkeypatch.setattr(relocation, "_launch", relocating)
        monkeypatch.setattr(DeviceSlots, "on_host", lambda table: pytest.fail("waited for the device"))


@pytest.mark.usefixtures("slots_stay_on_the_device")
@pytest.mark.parametrize("name", ["block 1", "a page of 16, one slot per token", "value wider than key"])
@pytest.mark.parametrize("shift", [MeanShift(), MeanShift(reach=16.0)], ids=["plain", "weighed"])
def test_slots_may_be_known_to_the_device_alone(name: str, shift: MeanShift, device: torch.device) -> None:
    shape, rotation = CASES[name]
    pools = [Pool(device=device, **shape) for _ in range(2)]
    slots = pools[0].table.slots_of(np.arange(TOKENS))
    tables = [SlotTable.of_slots(slots), DeviceSlots(torch.from_numpy(slots[20:]).to(device), first_position=20)]
    for pool, table in zip(pools, tables, strict=True):
        paged = PagedMeanShift(shift, SPANS, ROWS, pool.kv, table, rotation)
        torch.manual_seed(5)
        pool.compute_rows(ROWS)
        for layer in range(pool.kv.layers):
            paged.apply(layer)
    assert all(map(torch.equal, pools[0].everything(), pools[1].everything()))
    with pytest.raises(InvalidKvError, match="outside the positions"):
        PagedMeanShift(MeanShift(), [Span(19, "a", 0, 30)], ROWS, pools[1].kv, tables[1], rotation)


def test_pools_beyond_31_bits_of_elements(device: torch.device) -> None:
    blocks = 2**31 // (16 * 64) + 4
    pool = PagedKv.from_latent([torch.empty(blocks, 16, 64, dtype=torch.bfloat16, device=device)])
    table = SlotTable(np.array([blocks - 1, 3, blocks - 2]), 16)
    at = torch.from_numpy(table.blocks).to(device)
    pool.keys[0][at] = 1.0
    paged = PagedMeanShift(MeanShift(1.0, 1), [Span(8, "a", 0, 32)], np.array([20]), pool, table, mla(True))
    pool.keys[0][3, 4] = 3.0
    paged.apply(0)
    latent = pool.keys[0][at].float().cpu().view(48, 64)[:, :40]
    assert (latent[8:40] == 3.0).all()
    assert (latent[:8] == 1.0).all()
    assert (latent[40:] == 1.0).all()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_plan_of_rows_and_spans(data: st.DataObject, device: torch.device) -> None:
    edges = sorted(data.draw(st.sets(st.integers(0, TOKENS), min_size=2, max_size=8)))
    spans = [Span(start, "d", 7, end - start) for start, end in zip(edges[::2], edges[1::2], strict=False)]
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, TOKENS - 1), max_size=TOKENS))), np.int64)
    shift = MeanShift(data.draw(st.sampled_from([0.25, 0.5, 1.0])), data.draw(st.integers(1, 5)))
    pool = Pool(data.draw(st.sampled_from(["nhd", "joined"])), device, block=data.draw(st.sampled_from([1, 4, 16])))
    check(pool, HALF, shift, spans, rows)


@pytest.mark.parametrize(
    ("spans", "blocks", "message"),
    [
        ([Span(170, "a", 0, 20)], None, "outside the positions"),
        ([Span(20, "a", 0, 20), Span(30, "a", 50, 20)], None, "overlap"),
        ([Span(20, "a", 0, 20)], [0, 1, 1], "twice"),
        ([Span(20, "a", 0, 20)], [0, 1, 99], "not in the pool"),
        ([Span(20, "a", 0, 20)], [0, 1, -1], "not in the pool"),
    ],
)
def test_what_does_not_fit_is_refused(spans: list[Span], blocks: list[int] | None, message: str) -> None:
    pool = Pool("nhd", CPU)
    table = pool.table if blocks is None else SlotTable(np.array(blocks), 16)
    rows = np.concatenate([np.arange(span.target_start, span.target_start + 5) for span in spans])
    with pytest.raises(InvalidKvError, match=message):
        PagedMeanShift(MeanShift(), spans, rows, pool.kv, table, HALF)


def test_another_rotation_and_another_layer_are_refused() -> None:
    pool = Pool("nhd", CPU)
    with pytest.raises(InvalidKvError, match="keys of 64"):
        PagedMeanShift(MeanShift(), SPANS, ROWS, pool.kv, pool.table, llama(64))
    with pytest.raises(InvalidKvError, match="layer 2"):
        PagedMeanShift(MeanShift(), SPANS, ROWS, pool.kv, pool.table, HALF).apply(2)


def test_what_is_no_number_in_one_span_is_not_carried_into_others(device: torch.device) -> None:
    pool = PagedKv.from_stacked([torch.randn(2, 12, 16, 2, 16, device=device) for _ in range(2)], 0)
    pool.keys[middle_layer(2)][0, 5, 0, 3] = float("nan")
    spans = [Span(start, donor, start + 7, 32) for start, donor in ((0, "a"), (32, "b"), (64, "c"))]
    rows = np.array([1, 5, 9, 33, 40, 50, 66, 70, 90])
    shift = MeanShift(0.6, 1, 0.4, reach=32, likeness=3)
    correction = PagedMeanShift(shift, spans, rows, pool, SlotTable(np.arange(12), 16), llama(16))
    for layer in range(2):
        for row in rows:
            pool.keys[layer][row // 16, row % 16] = torch.randn(2, 16, device=device)
        correction.apply(layer)
        others = pool.keys[layer].flatten(0, 1)[32:96]
        assert others.isfinite().all()


def test_tables_grow_with_spans_and_rows_and_not_with_both(interpreted: ModuleType) -> None:
    """They are made before the first layer, by the engine's thread."""
    from semblend_core.kv.mean_shift import MeasuredSpans
    from semblend_core.kv.triton_row_weights import RowWeights

    def nbytes(count: int) -> int:
        spans = [Span(at * 64, "a", at * 64 + 5, 64) for at in range(count)]
        rows = np.concatenate([np.arange(span.target_start, span.target_start + 8) for span in spans])
        measured = MeasuredSpans.choose(MeanShift(0.6, 1, 0.4, reach=32, likeness=3), spans, rows)
        tables = RowWeights.of(measured, np.full(count, 64), 64).host_tables()
        return sum(table.nbytes for table in tables.values())

    assert nbytes(400) <= 4 * nbytes(100)
