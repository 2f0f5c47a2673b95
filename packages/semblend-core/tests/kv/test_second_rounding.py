"""Keys are not moved where fp8 keeps too little of them. They are where it keeps enough, and in finer types."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from semblend_core.contract import SelfTestResult
from semblend_core.kv import DonorKv, PagedKv, Rotation, RotationProof, indexable, narrow
from semblend_core.kv.second_rounding import MOST, SecondRounding
from semblend_core.serving.tree import SlotPool
from semblend_core.serving.worker import proof

LAYERS, HEADS, DIM, VOCABULARY = 3, 2, 64, 60
ROTATION = Rotation.from_config({"model_type": "qwen2", "head_dim": DIM, "rope_theta": 1e6})
PAIRWISE = Rotation(DIM, 0, DIM, True, ROTATION.frequencies)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, 400)
Judging = Callable[[DonorKv], SelfTestResult]
LARGE = 200.0
"""Qwen2.5-Coder-1.5B has up to 354 in layer 0, where keys of different tokens are 1 apart."""


def keys_of(bias: float, biased_layer: int = 0, rotation: Rotation = ROTATION) -> torch.Tensor:
    """[layers, tokens, heads, dim] as computed: of their tokens, with a bias in the slowest eighth of the bands."""
    source = torch.Generator().manual_seed(1)
    keys = torch.randn(LAYERS, VOCABULARY, HEADS, DIM, generator=source)
    band = torch.arange(DIM) // 2 if rotation.interleaved else torch.arange(DIM) % (DIM // 2)
    keys[biased_layer] += bias * (band >= DIM // 2 - DIM // 16)
    return torch.stack([rotation.rotate(layer, np.arange(TOKENS.size)) for layer in keys[:, torch.from_numpy(TOKENS)]])


def donor_of(dtype: torch.dtype, bias: float, biased_layer: int = 0, scale: float = 1.0) -> DonorKv:
    values = torch.randn(VOCABULARY, HEADS, DIM, generator=torch.Generator().manual_seed(2))[TOKENS]
    return DonorKv(narrow(keys_of(bias, biased_layer) / scale, dtype), narrow(values.expand(LAYERS, -1, -1, -1), dtype))


def judged(donor: DonorKv, prompts: int = 3) -> SelfTestResult:
    proving = RotationProof(*[ROTATION] * LAYERS)
    for _ in range(prompts):
        proof.judge(proving, donor, TOKENS)
    return proving.result


def judged_in_slots(donor: DonorKv) -> SelfTestResult:
    assert donor.values is not None
    slots = torch.randperm(500, generator=torch.Generator().manual_seed(4))[: TOKENS.size]
    buffers = [torch.zeros(500, HEADS, DIM, dtype=donor.keys.dtype) for _ in range(2 * LAYERS)]
    for buffer, part in zip(buffers, (*donor.keys, *donor.values), strict=True):
        indexable(buffer)[slots] = indexable(part)
    pool = SlotPool(PagedKv.from_slots(buffers[:LAYERS], buffers[LAYERS:]), ROTATION)
    proving = RotationProof(*pool.rotations)
    for _ in range(3):
        pool.test_keys(proving, lambda: slots, TOKENS)
    return proving.result


@pytest.mark.parametrize("judging", [judged, judged_in_slots])
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("layer", range(LAYERS))
def test_large_biases_in_any_layer_are_refused_in_fp8(judging: Judging, dtype: torch.dtype, layer: int) -> None:
    result = judging(donor_of(dtype, LARGE, layer))
    assert result.failed
    assert result.final, "no other prompt has other biases"
    name = "fp8_e4m3" if dtype == E4M3 else "fp8_e5m2"
    assert f"rounding moved K to {name} changes it by" in result.says
    assert f"in layer {layer} (limit {MOST:g})" in result.says
    assert "--kv-cache-dtype auto" in result.says


@pytest.mark.parametrize("judging", [judged, judged_in_slots])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_the_same_model_passes_in_finer_types(judging: Judging, dtype: torch.dtype) -> None:
    result = judging(donor_of(dtype, LARGE, 1))
    assert result.passed
    assert "rounding" not in result.says


@pytest.mark.parametrize("judging", [judged, judged_in_slots])
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("bias", [0.0, 5.0])
def test_a_model_without_large_biases_passes_in_fp8(judging: Judging, dtype: torch.dtype, bias: float) -> None:
    result = judging(donor_of(dtype, bias))
    assert result.passed
    assert "rounding moved K to fp8" in result.says


def test_nothing_is_loaded_while_prompts_are_counted() -> None:
    assert not judged(donor_of(E4M3, LARGE), prompts=1).passed


@pytest.mark.parametrize("scale", [0.5, 0.9, 3.0])
def test_scales_do_not_help_against_biases(scale: float) -> None:
    assert judged(donor_of(E4M3, LARGE, scale=scale)).failed
    assert judged(donor_of(E4M3, 0.0, scale=scale)).passed


@pytest.mark.parametrize("rotation", [ROTATION, PAIRWISE], ids=["halves", "pairs"])
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("bias", [0.0, 10.0, 100.0])
def test_it_tells_how_far_moved_keys_are_from_computed_ones(
    rotation: Rotation, dtype: torch.dtype, bias: float
) -> None:
    """Within a factor: both were rounded, and what was moved twice."""
    keys, places = keys_of(bias, rotation=rotation), np.unique(TOKENS, return_index=True)[1]
    stored = narrow(keys[:1, places], dtype)
    told = SecondRounding.of(stored, places, [rotation])
    assert told is not None
    far = np.geomspace(8, 32768, places.size).astype(int)
    computed = narrow(rotation.rotate(keys[0, places], far), dtype).float()
    moved = rotation.rotate(stored[0], far).float()
    found = float((moved - computed).square().mean().sqrt())
    assert told.share < found < 3 * told.share


def test_layers_that_hold_nothing_lose_nothing_and_numbers_that_are_none_are_refused() -> None:
    nothing = torch.zeros(2, 20, HEADS, DIM)
    found = SecondRounding.of(narrow(nothing, E4M3), np.arange(20), [ROTATION] * 2)
    assert found is not None
    assert found.share == 0
    nothing[1] = torch.nan
    found = SecondRounding.of(narrow(nothing, E4M3), np.arange(20), [ROTATION] * 2)
    assert found is not None
    assert (found.layer, found.agrees) == (1, False)


def test_what_does_not_turn_is_not_rounded_again() -> None:
    """Of a latent, say: a bias there costs nothing."""
    rotation = Rotation(DIM, DIM // 2, DIM // 2, False, ROTATION.frequencies[: DIM // 4])
    keys = torch.randn(1, 20, 1, DIM)
    keys[..., : DIM // 2] += LARGE
    found = SecondRounding.of(narrow(keys, E4M3), np.arange(20), [rotation])
    assert found is not None
    assert found.agrees
