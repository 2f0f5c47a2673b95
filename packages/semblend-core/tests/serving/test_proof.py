"""The self-test by repeated tokens: it passes for a real rotary layer and sees what is wrong with another."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from semblend_core import SelfTestResult, SelfTestState
from semblend_core.kv import DonorKv, PagedKv, Rotation, RotationProof, indexable, narrow
from semblend_core.serving.worker import PagedMemory, proof

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_attention_heads": 2,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
}
ROTATION = Rotation.from_config(CONFIG)
TOKENS = np.random.default_rng(3).integers(0, 40, 300)


def layer_zero(rotation: Rotation, tokens: np.ndarray) -> DonorKv:
    """What a model's first layer keeps: a function of the token, turned by its position."""
    source = torch.Generator().manual_seed(1)
    keys, values = (torch.randn(40, 2, 32, generator=source)[torch.from_numpy(tokens)] for _ in range(2))
    return DonorKv(rotation.rotate(keys, np.arange(tokens.size))[None], values[None])


def judged(donor: DonorKv, tokens: np.ndarray = TOKENS) -> SelfTestResult:
    """After as many such prompts as a failure takes."""
    rotation_proof = RotationProof(ROTATION)
    for _ in range(3):
        proof.judge(rotation_proof, donor, tokens)
    return rotation_proof.result


def test_a_rotary_layer_passes_by_one_prompt() -> None:
    result = proof.judge(RotationProof(ROTATION), layer_zero(ROTATION, TOKENS), TOKENS)
    assert result is not None
    assert result.passed


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_kv_without_values_is_judged_by_its_keys(theta: float) -> None:
    donor = layer_zero(Rotation.from_config({**CONFIG, "rope_theta": theta}), TOKENS)
    assert judged(DonorKv(donor.keys, None)).passed == (theta == 10000.0)


@pytest.mark.parametrize("broken", [False, True])
def test_the_way_into_a_pool_of_latents(broken: bool) -> None:
    config = {"model_type": "deepseek_v2", "kv_lora_rank": 32, "qk_rope_head_dim": 16}
    rotation = Rotation.from_config(config)
    memory = PagedMemory(PagedKv.from_latent([torch.randn(4, 8, 48) for _ in range(3)]), rotation)
    before = memory.gather([1], 8).keys
    other = Rotation.from_config(config, interleaved=False)
    refused = proof.of_the_way_in(memory, [other if broken else rotation] * 3, 1)
    assert refused == ("K that was moved by one position is not K turned by one position" if broken else "")
    assert torch.equal(memory.gather([1], 8).keys, before)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("broken", [False, True])
def test_the_way_into_a_pool_in_fp8(dtype: torch.dtype, broken: bool) -> None:
    layers = [torch.randn(4, 2, 8, 64).to(dtype) for _ in range(3)]
    views = PagedKv.from_joined(layers, 32).with_scales((0.5, 0.1, 3.0), (1.0, 0.2, 2.0))
    memory = PagedMemory(views, ROTATION)
    before = memory.gather([1], 8)
    other = Rotation.from_config(CONFIG, interleaved=True)
    refused = proof.of_the_way_in(memory, [other if broken else ROTATION] * 3, 1)
    assert refused == ("K that was moved by one position is not K turned by one position" if broken else "")
    assert torch.equal(indexable(memory.gather([1], 8).keys), indexable(before.keys))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_rotary_layer_in_fp8_passes_and_one_that_does_not_turn_fails(dtype: torch.dtype) -> None:
    computed = layer_zero(ROTATION, TOKENS)
    still = ROTATION.rotate(computed.keys[0], -np.arange(TOKENS.size))[None]
    assert computed.values is not None
    values = narrow(computed.values, dtype)
    assert judged(DonorKv(narrow(computed.keys, dtype), values)).passed
    assert judged(DonorKv(narrow(still, dtype), values)).failed


def test_other_frequencies_are_found_out() -> None:
    other = Rotation.from_config({**CONFIG, "rope_theta": 500000.0})
    result = judged(layer_zero(other, TOKENS))
    assert result.failed
    assert "K of layer 0" in result.says


def test_keys_without_positions_are_found_out() -> None:
    donor = layer_zero(ROTATION, TOKENS)
    still = DonorKv(ROTATION.rotate(donor.keys[0], -np.arange(TOKENS.size))[None], donor.values)
    assert judged(still).failed


def test_values_read_from_the_wrong_place_are_found_out() -> None:
    donor = layer_zero(ROTATION, TOKENS)
    assert donor.values is not None
    result = judged(DonorKv(donor.keys, donor.values.roll(1, dims=1)))
    assert result.failed
    assert "V of layer 0" in result.says


@pytest.mark.parametrize("tokens", [np.arange(300) % 40 + np.arange(300) // 40 * 40, np.zeros(4, int)])
def test_a_prompt_without_repeats_proves_nothing(tokens: np.ndarray) -> None:
    keys = torch.randn(1, tokens.size, 2, 32)
    assert judged(DonorKv(keys, keys), tokens).state is SelfTestState.PENDING
