"""SGLang's real pool in fp8, filled by its own store: what is read, moved, corrected and proved there.

No real engine: on CPUs SGLang 0.5.23 refuses fp8_e5m2, and runs fp8_e4m3 with AMX only, by a method of its own.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

from semblend_core import Span
from semblend_core.kv import DeviceSlots, Rotation, RotationProof, Scales, indexable, narrow
from semblend_core.recompute import MeanShift
from semblend_core.serving.tree import SlotPool
from semblend_sglang.compat.stored_types import why_not_stored_so
from semblend_sglang.worker.pool import slot_pool_of

SLOTS, HEADS, DIM, LAYERS = 400, 2, 32, 2
ROTATION = Rotation.from_config({"model_type": "llama", "head_dim": DIM})
TYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
SCALES = Scales((0.25, 0.03), (1.0, 3.0))
TOKENS = np.arange(200) % 50

pytestmark = pytest.mark.usefixtures("configured")


def engine_pool(dtype: torch.dtype) -> Any:
    return MHATokenToKVPool(SLOTS, 1, dtype, HEADS, DIM, LAYERS, "cpu", False)


def store(pool: Any, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """As attention with a layer's scales does it."""
    scales = SCALES.keys[layer], SCALES.values[layer]
    pool.set_kv_buffer(SimpleNamespace(layer_id=layer), slots, keys.clone(), values.clone(), *scales)


def filled(dtype: torch.dtype, slots: torch.Tensor) -> tuple[SlotPool, torch.Tensor, torch.Tensor]:
    """A pool with random KV, as it was computed, in these slots of every layer."""
    pool = engine_pool(dtype)
    keys, values = (torch.randn(LAYERS, len(slots), HEADS, DIM) for _ in "kv")
    for layer in range(LAYERS):
        store(pool, layer, slots, keys[layer], values[layer])
    return slot_pool_of(pool, ROTATION, None, SCALES), keys, values


@pytest.mark.parametrize("dtype", TYPES)
def test_it_is_read_as_sglang_has_written_it(dtype: torch.dtype) -> None:
    slots = torch.randperm(SLOTS)[:100]
    pool, keys, _ = filled(dtype, slots)
    assert why_not_stored_so(engine_pool(dtype)) is None
    for layer, read in enumerate(pool.keys_at(range(LAYERS), slots)):
        rounded = narrow(keys[layer] / SCALES.keys[layer], dtype).float() * SCALES.keys[layer]
        assert torch.equal(read, rounded)


@pytest.mark.parametrize("dtype", TYPES)
def test_values_keep_every_bit_and_keys_are_turned_and_rounded_once(dtype: torch.dtype) -> None:
    slots = torch.randperm(SLOTS)
    pool, _, _ = filled(dtype, slots[:100])
    before, there = pool.take_slots(slots[:100]), slots[100:160]
    pool.move_slots([Span(37, "a", 20, 60)], {"a": slots[:100]}, there, first_position=37)
    moved = pool.take_slots(there)
    assert moved.values is not None
    assert before.values is not None
    assert torch.equal(indexable(moved.values), indexable(before.values[:, 20:80]))
    for layer in range(LAYERS):
        turned = narrow(ROTATION.rotate(before.keys[layer, 20:80].float(), 17), dtype)
        assert torch.equal(indexable(moved.keys[layer]), indexable(turned))


def test_a_correction_is_of_what_was_computed() -> None:
    slots, rows = torch.randperm(SLOTS)[:64], np.arange(0, 64, 4)
    pool, _, _ = filled(torch.float8_e4m3fn, slots)
    table = DeviceSlots(slots, first_position=0)
    before = [pool.views.read(layer, (slots, torch.zeros_like(slots)))[1] for layer in range(LAYERS)]
    correction = pool.correction(MeanShift(1.0, 1), [Span(0, "a", 0, 64)], rows, table)
    others = np.setdiff1d(np.arange(64), rows)
    for layer, values in enumerate(before):
        assert values is not None
        at = slots[rows], torch.zeros(len(rows), dtype=torch.long)
        pool.views.write(layer, at, pool.views.read_keys(layer, at), values[rows] + 2 * SCALES.values[layer])
        correction.apply(layer)
        after = pool.views.read(layer, (slots, torch.zeros_like(slots)))[1]
        assert after is not None
        moved = (after - values)[others].mean() / SCALES.values[layer]
        assert moved == pytest.approx(2, rel=0.05), "all of a span moves by what its rows have changed"


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("turned", ["right", "not at all", "by other frequencies", "in other pairs"])
def test_the_self_test_tells_the_models_rotation_from_others(dtype: torch.dtype, turned: str) -> None:
    rotation = {
        "right": ROTATION,
        "not at all": Rotation(DIM, 0, DIM, False, ROTATION.frequencies * 0),
        "by other frequencies": Rotation.from_config({"model_type": "llama", "head_dim": DIM, "rope_theta": 5e5}),
        "in other pairs": Rotation(DIM, 0, DIM, True, ROTATION.frequencies),
    }[turned]
    keys, values = torch.randn(50, HEADS, DIM), torch.randn(50, HEADS, DIM)
    slots, pool = torch.randperm(SLOTS)[:200], engine_pool(dtype)
    store(pool, 0, slots, rotation.rotate(keys[TOKENS], np.arange(200)), values[TOKENS])
    proof, ours = RotationProof(ROTATION), slot_pool_of(pool, ROTATION, None, SCALES)
    for _ in range(3):
        ours.test_keys(proof, lambda: slots, TOKENS)
    assert (proof.result.passed, proof.result.failed) == ((True, False) if turned == "right" else (False, True))
