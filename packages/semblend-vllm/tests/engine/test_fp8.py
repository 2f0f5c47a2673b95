"""KV that vLLM keeps as fp8: bytes come out and go in as they are, and answers stay close to the same engine's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from semblend_core import Span
from semblend_core.kv import DonorKv, Rotation, Scales, indexable, narrow
from semblend_core.recompute import MeanShift
from semblend_vllm.compat.cpu_memory import PackedCpuMemory
from semblend_vllm.compat.kv_memory import _cpu_writer, kv_memory
from semblend_vllm.compat.stored_types import FP8, as_stored, identity_of_scales, scales_of
from semblend_vllm.compat.versions import UnsupportedVllmError

LAYERS, BLOCKS, HEADS, BLOCK, DIM = 2, 6, 2, 32, 64
ROTATION = Rotation.from_config({"model_type": "llama", "head_dim": DIM})
SCALES = Scales((0.25, 0.03), (1.0, 3.0))


def config(asked: str, scales: Scales | None = None, backend: str = "CPU_ATTN") -> Any:
    layers = {
        f"model.layers.{n}.self_attn": SimpleNamespace(
            _k_scale=torch.tensor(1.0 if scales is None else scales.keys[n]),
            _v_scale=torch.tensor(1.0 if scales is None else scales.values[n]),
            attn_backend=SimpleNamespace(get_name=lambda: backend),
        )
        for n in range(LAYERS)
    }
    return SimpleNamespace(
        cache_config=SimpleNamespace(block_size=BLOCK, cache_dtype=asked),
        model_config=SimpleNamespace(dtype=torch.float32, use_mla=False, get_head_size=lambda: DIM),
        compilation_config=SimpleNamespace(static_forward_context=layers),
    )


def caches(told: Any) -> dict[str, torch.Tensor]:
    """As vLLM registers them: bytes."""
    names = told.compilation_config.static_forward_context
    return {name: torch.zeros(BLOCKS, HEADS, BLOCK, 2 * DIM, dtype=torch.uint8) for name in names}


def memory_of(asked: str, scales: Scales | None = None) -> PackedCpuMemory:
    told = config(asked, scales)
    made = kv_memory(told, caches(told), [ROTATION] * LAYERS)
    assert isinstance(made, PackedCpuMemory)
    return made


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Any finite ones, zeros with a sign among them."""
    every = torch.arange(256, dtype=torch.uint8)
    finite = every[every.view(dtype).float().isfinite()]
    return finite[torch.randint(len(finite), shape)].view(dtype)


@pytest.mark.parametrize("asked", FP8)
@pytest.mark.parametrize("scales", [None, SCALES], ids=["unscaled", "scaled"])
def test_values_keep_every_bit_and_keys_are_turned_and_rounded_once(asked: str, scales: Scales | None) -> None:
    memory, dtype = memory_of(asked, scales), FP8[asked]
    donor = DonorKv(*(numbers(dtype, LAYERS, 70, HEADS, DIM) for _ in "kv"))
    memory.scatter([4, 1, 3], [(donor, Span(9, "a", 3, 60))])
    found = memory.gather([4, 1, 3], 96)
    assert found.keys.dtype == dtype
    assert found.values is not None
    assert donor.values is not None
    assert torch.equal(indexable(found.values[:, 9:69]), indexable(donor.values[:, 3:63]))
    for layer in range(LAYERS):
        turned = ROTATION.rotate(donor.keys[layer, 3:63].float(), 6)
        assert torch.equal(indexable(found.keys[layer, 9:69]), indexable(narrow(turned, dtype)))


@pytest.mark.parametrize("asked", FP8)
def test_the_pool_is_read_as_vllm_has_written_it(asked: str) -> None:
    told = config(asked, SCALES)
    pools = caches(told)
    memory = kv_memory(told, pools, [ROTATION] * LAYERS)
    keys, values = (torch.randn(40, HEADS, DIM) + 3 for _ in "kv")
    write = _cpu_writer(told, next(iter(pools.values())))
    for pool in pools.values():
        halves = pool.view(BLOCKS, HEADS, 2 * BLOCK, DIM).chunk(2, dim=2)
        write(keys, values, *halves, torch.arange(32, 72))  # As with scales of 1: these numbers are stored.
    found = memory.gather([1, 2], 40)
    assert found.values is not None
    step = torch.finfo(FP8[asked]).eps  # vLLM cuts off what does not fit.
    torch.testing.assert_close(found.keys[1].float(), keys, rtol=step, atol=1e-2)
    torch.testing.assert_close(found.values[1].float(), values, rtol=step, atol=1e-2)
    (read,) = memory.keys_at([1], torch.tensor([40, 33]))
    assert torch.equal(read, found.keys[1].float()[[8, 1]] * SCALES.keys[1])


def test_a_correction_is_of_what_was_computed_and_rounded_once() -> None:
    memory, rows = memory_of("fp8", SCALES), np.arange(0, 64, 4)
    donor = DonorKv(*(narrow(torch.randn(LAYERS, 64, HEADS, DIM), FP8["fp8"]) for _ in "kv"))
    memory.scatter([0, 2], [(donor, Span(0, "a", 0, 64))])
    before = [memory.read_layer(layer, slots_of(0, 64)) for layer in range(LAYERS)]
    correction = memory.correction([0, 2], [Span(0, "a", 0, 64)], rows, MeanShift(1.0, 1))
    for layer in range(LAYERS):
        fresh = [part[rows] + 3 * scale for part, scale in zip(before[layer], memory._scales_of(layer), strict=True)]
        memory.write_layer(layer, slots_of(0, 64)[rows], *fresh)
        correction.apply(layer)
        _, values = memory.read_layer(layer, slots_of(0, 64))
        others = np.setdiff1d(np.arange(64), rows)
        moved = (values - before[layer][1])[others].mean() / memory._scales_of(layer)[1]
        assert moved == pytest.approx(3, rel=0.05), "all of a span moves by what its rows have changed"


def slots_of(first: int, last: int) -> torch.Tensor:
    places = torch.arange(first, last)
    return torch.tensor([0, 2])[places // BLOCK] * BLOCK + places % BLOCK


def test_scales_come_from_the_layers_and_none_are_a_heads() -> None:
    told = config("fp8", SCALES)
    names = list(told.compilation_config.static_forward_context)
    found = scales_of(told, names)
    assert found is not None
    np.testing.assert_allclose(found.keys, SCALES.keys)
    assert scales_of(config("fp8"), names) is None
    assert scales_of(config("auto", SCALES), names) is None
    told.compilation_config.static_forward_context[names[0]]._k_scale = torch.ones(HEADS)
    with pytest.raises(UnsupportedVllmError, match="a scale for each head"):
        scales_of(told, names)


def test_what_another_backend_stores_as_e5m2_is_refused() -> None:
    told = config("fp8_e5m2", backend="TRITON_ATTN")
    pools = caches(told)
    with pytest.raises(UnsupportedVllmError, match="TRITON_ATTN stores fp8_e5m2 as another type"):
        as_stored(told, list(pools.values()), list(pools))


def test_fp8_is_known_by_where_its_scales_come_from() -> None:
    assert identity_of_scales(config("auto")) == ()
    assert "of the weights" in str(identity_of_scales(config("fp8")))
