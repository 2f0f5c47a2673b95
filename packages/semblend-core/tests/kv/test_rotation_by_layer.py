"""Layers that rotate differently: each by its own frequencies, and the self-test sees it where one kind is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import Gemma3TextConfig
from transformers.models.gemma3 import modeling_gemma3 as gemma

from semblend_core.kv import DonorKv, Rotation, RotationProof, UnsupportedRotationError, why_keys_do_not_move
from semblend_core.serving.worker import proof

KINDS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
ROTATIONS = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
}
TOKENS = np.random.default_rng(3).integers(0, 40, 400)


def config(**rotations: Any) -> Gemma3TextConfig:
    return Gemma3TextConfig(
        hidden_size=128,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        num_hidden_layers=len(KINDS),
        layer_types=KINDS,
        rope_parameters={kind: parameters | rotations.get(kind, {}) for kind, parameters in ROTATIONS.items()},
    )


def test_each_layer_turns_as_transformers_turns_it() -> None:
    rotations, rotary = Rotation.by_layer(config(), 4), gemma.Gemma3RotaryEmbedding(config())
    keys = torch.randn(1, 1, 1, 64, generator=torch.Generator().manual_seed(0))

    def at(position: int, kind: str) -> torch.Tensor:
        cos, sin = rotary(keys, torch.tensor([[position]]), kind)
        return torch.as_tensor(gemma.apply_rotary_pos_emb(keys, keys, cos, sin)[1])

    for rotation, kind in zip(rotations, KINDS, strict=True):
        moved, wanted = rotation.rotate(at(17, kind), 73), at(90, kind)
        assert (moved - wanted).abs().max() <= 2e-5 * wanted.abs().max()
    assert rotations[0] is rotations[1] is rotations[3] is not rotations[2]


def test_layers_that_rotate_alike_have_one_rotation() -> None:
    rotations = Rotation.by_layer({"model_type": "llama", "head_dim": 64}, 3)
    assert len(rotations) == 3
    assert len(set(map(id, rotations))) == 1


def test_who_turns_all_layers_alike_is_told_that_they_differ() -> None:
    assert "differ between layers" in str(why_keys_do_not_move(config()))
    assert why_keys_do_not_move(config(), by_layer=True) is None
    dynamic = config(full_attention={"rope_type": "dynamic"})
    assert "dynamic" in str(why_keys_do_not_move(dynamic, by_layer=True))


def test_a_config_for_other_layers_is_refused() -> None:
    with pytest.raises(UnsupportedRotationError, match="names 4 layers, and 5 have KV"):
        Rotation.by_layer(config(), 5)


def kv_of_a_model(rotations: tuple[Rotation, ...], noise: float) -> DonorKv:
    """Keys of their tokens, turned by position, to which deeper layers have added what stands before them."""
    source = torch.Generator().manual_seed(1)
    by_token = torch.randn(4, 40, 1, 64, generator=source)[:, torch.from_numpy(TOKENS)]
    added = noise * torch.randn(by_token.shape, generator=source)
    added[0] = 0
    turned = [turn.rotate(keys, np.arange(TOKENS.size)) for turn, keys in zip(rotations, by_token + added, strict=True)]
    return DonorKv(torch.stack(turned), by_token)


def judged(donor: DonorKv, rotations: tuple[Rotation, ...]) -> Any:
    tested = RotationProof(*rotations)
    for _ in range(3):
        proof.judge(tested, donor, TOKENS)
    return tested.result


@pytest.mark.parametrize("noise", [0.0, 0.3, 0.8])
def test_the_first_layer_of_each_kind_is_proved(noise: float) -> None:
    rotations = Rotation.by_layer(config(), 4)
    result = judged(kv_of_a_model(rotations, noise), rotations)
    assert result.passed, result.says
    assert "layer 2" in result.says


@pytest.mark.parametrize("kind", ["sliding_attention", "full_attention"])
@pytest.mark.parametrize(
    "wrong", [{"rope_theta": 30_000.0}, {"rope_type": "linear", "factor": 2.0}], ids=["theta", "scaling"]
)
def test_a_wrong_rotation_in_one_kind_of_layer_is_found_out(kind: str, wrong: dict[str, Any]) -> None:
    engine, thought = Rotation.by_layer(config(), 4), Rotation.by_layer(config(**{kind: wrong}), 4)
    result = judged(kv_of_a_model(engine, 0.3), thought)
    assert result.failed
    assert ("layer 0" if kind == "sliding_attention" else "layer 2") in result.says


def test_keys_of_a_deeper_kind_that_do_not_turn_are_found_out() -> None:
    rotations = Rotation.by_layer(config(), 4)
    donor = kv_of_a_model(rotations, 0.3)
    donor.keys[2] = rotations[2].rotate(donor.keys[2], -np.arange(TOKENS.size))
    assert judged(donor, rotations).failed
