"""Relocated KV is the donor's, token by token: values as they were, keys at their new positions, all else untouched."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from semblend_core import Span
from semblend_core.kv import relocation
from semblend_core.kv.donor_kv import DonorKv, indexable
from semblend_core.kv.layout import PagedKv, narrow
from semblend_core.kv.moves import Moves, SlotTable
from semblend_core.kv.pool import KvPool
from semblend_core.kv.relocation import relocate
from semblend_core.kv.rotation import Rotation

LAYERS, BLOCKS, BLOCK, HEADS, DIM = 3, 10, 8, 2, 32
LLAMA = {"model_type": "llama", "head_dim": DIM, "rope_theta": 1e5}
ROTATION = Rotation.from_config(LLAMA)

LAYOUTS: dict[str, Callable[[], PagedKv]] = {
    "K|V rows": lambda: PagedKv.from_joined([torch.randn(BLOCKS, HEADS, BLOCK, 2 * DIM) for _ in range(LAYERS)], DIM),
    "[2, blocks] NHD": lambda: PagedKv.from_stacked(
        [torch.randn(2, BLOCKS, BLOCK, HEADS, DIM) for _ in range(LAYERS)], 0
    ),
    "[2, blocks] HND": lambda: PagedKv.from_stacked(
        [torch.randn(2, BLOCKS, HEADS, BLOCK, DIM).transpose(2, 3) for _ in range(LAYERS)], 0
    ),
    "[blocks, 2] NHD": lambda: PagedKv.from_stacked(
        [torch.randn(BLOCKS, 2, BLOCK, HEADS, DIM) for _ in range(LAYERS)], 1
    ),
    "[blocks, 2] HND": lambda: PagedKv.from_stacked(
        [torch.randn(BLOCKS, 2, HEADS, BLOCK, DIM).transpose(2, 3) for _ in range(LAYERS)], 1
    ),
    "slots": lambda: PagedKv.from_slots(*(slot_buffers() for _ in "kv")),
    "slots in pages": lambda: PagedKv.from_slots(*(slot_buffers() for _ in "kv"), page_size=4),
    "dense": lambda: PagedKv.from_donor(
        DonorKv(torch.randn(LAYERS, BLOCKS * BLOCK, HEADS, DIM), torch.randn(LAYERS, BLOCKS * BLOCK, HEADS, DIM))
    ),
}


def slot_buffers() -> list[Tensor]:
    return [torch.randn(BLOCKS * BLOCK, HEADS, DIM) for _ in range(LAYERS)]


def table_of(pool: PagedKv, seed: int, first_position: int = 0) -> SlotTable:
    blocks = np.random.default_rng(seed).permutation(pool.keys[0].shape[0])
    return SlotTable(blocks, pool.block_size, first_position)


def in_order(pool: PagedKv, table: SlotTable) -> tuple[Tensor, Tensor]:
    """Keys and values [layers, tokens, heads, dim] of a sequence, by the plainest means."""
    blocks = torch.from_numpy(table.blocks.astype(np.int64))
    keys, values = (torch.stack([view[blocks].flatten(0, 1) for view in views]) for views in (pool.keys, pool.values))
    return keys, values


SPANS = [Span(3, "d", 20, 17), Span(20, "d", 0, 9), Span(40, "d", 40, 12), Span(52, "d", 50, 20)]


@pytest.mark.parametrize("target_layout", LAYOUTS)
@pytest.mark.parametrize("source_layout", LAYOUTS)
def test_every_layout_moves_to_every_other(source_layout: str, target_layout: str) -> None:
    torch.manual_seed(0)
    source, target = LAYOUTS[source_layout](), LAYOUTS[target_layout]()
    taken, given = table_of(source, 1), table_of(target, 2)
    old_keys, old_values = in_order(source, taken)
    wanted_keys, wanted_values = (part.clone() for part in in_order(target, given))
    for span in SPANS:
        for step in range(span.length):
            key = old_keys[:, span.donor_start + step]
            wanted_keys[:, span.target_start + step] = ROTATION.rotate(key, span.shift)
            wanted_values[:, span.target_start + step] = old_values[:, span.donor_start + step]
    relocate(source, target, Moves.build(SPANS, sources={"d": taken}, target=given), ROTATION)
    keys, values = in_order(target, given)
    assert torch.equal(keys, wanted_keys)
    assert torch.equal(values, wanted_values)
    assert all(map(torch.equal, in_order(source, taken), (old_keys, old_values)))


def test_several_donors_of_one_pool_go_in_one_move() -> None:
    source, target = LAYOUTS["[2, blocks] NHD"](), LAYOUTS["K|V rows"]()
    donors = {"a": SlotTable(np.array([7, 2, 5]), BLOCK), "b": SlotTable(np.array([0, 9]), BLOCK, first_position=100)}
    spans = [Span(0, "b", 103, 10), Span(16, "a", 1, 20), Span(40, "b", 100, 16)]
    given = table_of(target, 3)
    relocate(source, target, Moves.build(spans, sources=donors, target=given), ROTATION)
    keys, values = in_order(target, given)
    for span in spans:
        donor_keys, donor_values = in_order(source, donors[span.donor_id])
        begin = span.donor_start - donors[span.donor_id].first_position
        here, there = slice(span.target_start, span.target_end), slice(begin, begin + span.length)
        assert torch.equal(values[:, here], donor_values[:, there])
        for layer in range(LAYERS):
            assert torch.equal(keys[layer, here], ROTATION.rotate(donor_keys[layer, there], span.shift))


def test_a_donor_that_does_not_begin_at_zero_keeps_its_positions() -> None:
    donor = DonorKv(torch.randn(LAYERS, 12, HEADS, DIM), torch.randn(LAYERS, 12, HEADS, DIM), first_position=50)
    target = LAYOUTS["slots"]()
    given = SlotTable.of_slots(np.random.default_rng(0).permutation(target.slots))
    moves = Moves.build([Span(7, "d", 52, 10)], sources={"d": SlotTable.of_donor(donor)}, target=given)
    relocate(PagedKv.from_donor(donor), target, moves, ROTATION)
    keys, values = in_order(target, given)
    assert torch.equal(values[:, 7:17], donor.values[:, 2:12])  # type: ignore[index]
    assert torch.equal(keys[1, 7:17], ROTATION.rotate(donor.keys[1, 2:12], 7 - 52))


def test_a_latent_cache_turns_only_behind_its_latent() -> None:
    rotation = Rotation.from_config(
        {"model_type": "deepseek_v3", "kv_lora_rank": 24, "qk_rope_head_dim": 8, "rope_theta": 1e4}
    )
    source, target = (PagedKv.from_latent([torch.randn(4, 8, 32) for _ in range(2)]) for _ in range(2))
    table = SlotTable(np.arange(4), 8)
    relocate(source, target, Moves.build([Span(5, "d", 12, 9)], sources={"d": table}, target=table), rotation)
    for layer in range(2):
        old, new = (pool.keys[layer].flatten(0, 1)[:, 0] for pool in (source, target))
        assert torch.equal(new[5:14, :24], old[12:21, :24])
        assert torch.equal(new[5:14], rotation.rotate(old[12:21], -7))


FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]


def fp8_pool(dtype: torch.dtype, key_scale: float, value_scale: float) -> PagedKv:
    layers = [(torch.randn(2, BLOCKS, BLOCK, HEADS, DIM) * 3).to(dtype) for _ in range(LAYERS)]
    scales = [tuple(scale * (layer + 1) for layer in range(LAYERS)) for scale in (key_scale, value_scale)]
    return PagedKv.from_stacked(layers, 0).with_scales(*scales)


@pytest.mark.parametrize("dtype", FP8)
def test_fp8_moves_within_one_rounding_of_its_type(dtype: torch.dtype) -> None:
    source, target = fp8_pool(dtype, 0.5, 0.25), fp8_pool(dtype, 0.125, 0.25)
    table = SlotTable(np.arange(BLOCKS), BLOCK)
    relocate(source, target, Moves.build([Span(0, "d", 30, 40)], sources={"d": table}, target=table), ROTATION)
    for layer in range(LAYERS):
        assert target.key_scales is not None
        assert source.key_scales is not None
        old = source.keys[layer].flatten(0, 1)[30:70].float() * source.key_scales[layer]
        stored = target.keys[layer].flatten(0, 1)[:40].float()
        limit = torch.finfo(dtype).max
        wanted = (ROTATION.rotate(old, -30) / target.key_scales[layer]).clamp(-limit, limit)
        step = torch.finfo(dtype).eps * wanted.abs() + torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        assert ((stored - wanted).abs() <= step).all()
        bytes_of = [pool.values[layer].view(torch.uint8).flatten(0, 1) for pool in (source, target)]
        assert torch.equal(bytes_of[1][:40], bytes_of[0][30:70])


@pytest.mark.parametrize("dtype", FP8)
def test_fp8_saturates_where_the_target_scale_is_too_small(dtype: torch.dtype) -> None:
    source, target = fp8_pool(dtype, 1.0, 1.0), fp8_pool(dtype, 1e-6, 1e-6)
    table = SlotTable(np.arange(BLOCKS), BLOCK)
    relocate(source, target, Moves.build([Span(0, "d", 30, 8)], sources={"d": table}, target=table), ROTATION)
    largest = torch.finfo(dtype).max
    for views in (target.keys, target.values):
        stored = views[0][0].float()
        assert stored.isfinite().all()
        assert (stored.abs() == largest).float().mean() > 0.9


@pytest.mark.parametrize("dtype", FP8)
def test_fp8_under_one_scale_moved_by_nothing_keeps_every_byte(dtype: torch.dtype) -> None:
    every_byte = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    finite = torch.arange(256, dtype=torch.uint8)[every_byte.isfinite()]
    raw = finite[torch.randint(len(finite), (2, BLOCKS, BLOCK, HEADS, DIM))]
    scales = (0.37,)
    source = PagedKv.from_stacked([raw.clone().view(dtype)], 0).with_scales(scales, scales)
    target = PagedKv.from_stacked([torch.zeros_like(raw).view(dtype)], 0).with_scales(scales, scales)
    table = SlotTable(np.arange(BLOCKS), BLOCK)
    relocate(source, target, Moves.build([Span(0, "d", 0, 80)], sources={"d": table}, target=table), ROTATION)
    assert torch.equal(target.keys[0].view(torch.uint8), source.keys[0].view(torch.uint8))


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("scale", [1.0, 0.37])
def test_fp8_of_an_engine_is_turned_in_float32_and_rounded_once_whatever_its_scales(
    dtype: torch.dtype, scale: float
) -> None:
    pool = KvPool(fp8_pool(dtype, scale, 2 * scale), ROTATION)
    table = table_of(pool.views, 1)
    donor = pool.take(table, 40)
    pool.bring([(donor, Span(41, "d", 3, 30))], table)
    moved = pool.take(table, 80)
    assert moved.values is not None
    assert donor.values is not None
    assert torch.equal(indexable(moved.values[:, 41:71]), indexable(donor.values[:, 3:33]))
    for layer in range(LAYERS):
        turned = ROTATION.rotate(donor.keys[layer, 3:33].float(), 38)
        assert torch.equal(indexable(moved.keys[layer, 41:71]), indexable(narrow(turned, dtype)))
        assert pool.views.key_scales is not None
        slots = torch.from_numpy(table.slots_of(np.arange(41, 71)).astype(np.int64))
        computed = moved.keys[layer, 41:71].float() * pool.views.key_scales[layer]
        torch.testing.assert_close(next(pool.keys_at([layer], slots)), computed, rtol=1e-6, atol=0)


def test_one_pool_may_be_source_and_target() -> None:
    pool = LAYOUTS["K|V rows"]()
    before, _ = (part.clone() for part in in_order(pool, SlotTable(np.arange(BLOCKS), BLOCK)))
    moves = Moves.build(
        [Span(0, "d", 3, 20)],
        sources={"d": SlotTable(np.array([0, 1, 2]), BLOCK)},
        target=SlotTable(np.array([9, 8, 7]), BLOCK),
    )
    relocate(pool, pool, moves, ROTATION)
    after, _ = in_order(pool, SlotTable(np.array([9, 8, 7]), BLOCK))
    assert torch.equal(after[0, :20], ROTATION.rotate(before[0, 3:23], -3))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_donor_seen_for_the_first_time_does_not_make_the_host_wait() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    keys, values = (torch.randn(LAYERS, 40, HEADS, DIM, device=device) for _ in "kv")
    target = PagedKv.from_slots(*([buffer.to(device) for buffer in slot_buffers()] for _ in "kv"))

    def move() -> None:
        donor = DonorKv(keys, values)
        table = SlotTable.of_slots(np.arange(40))
        moves = Moves.build([Span(2, "d", 9, 30)], sources={"d": SlotTable.of_donor(donor)}, target=table)
        relocate(PagedKv.from_donor(donor), target, moves, ROTATION)

    move()  # Compiles the kernel.
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        move()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_nothing_to_move_is_fine() -> None:
    source, target = LAYOUTS["slots"](), LAYOUTS["slots"]()
    before = target.keys[0].clone()
    relocate(source, target, Moves.build([], sources={}, target=table_of(target, 0)), ROTATION)
    assert torch.equal(target.keys[0], before)


def test_without_triton_cuda_falls_back_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "semblend_core.kv.triton_relocation", None)
    relocation._kernel_is_there.cache_clear()
    relocation._warn_once.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                assert not relocation.has_kernel(torch.device("cuda"), torch.bfloat16)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "semblend-core[gpu]" in caplog.text
    finally:
        relocation._kernel_is_there.cache_clear()
        relocation._warn_once.cache_clear()


def test_relocation_without_a_gpu_does_not_import_triton() -> None:
    program = (
        "import sys, semblend_core; assert 'torch' not in sys.modules; "
        "import semblend_core.kv.relocation; assert 'semblend_core.kv.triton_relocation' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
