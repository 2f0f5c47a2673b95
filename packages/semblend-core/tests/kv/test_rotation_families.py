"""The listed architectures rotate as transformers' code for them does, and their defaults are its defaults."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig

from semblend_core.kv.rope_config import FAMILIES
from semblend_core.kv.rotation import Rotation, UnsupportedRotationError

SMALL = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
VISION = {"qwen2_vl_text": "qwen2_vl", "qwen2_5_vl_text": "qwen2_5_vl", "qwen3_vl_text": "qwen3_vl"}
"""Models of text behind images, by the package that holds them."""
OWN_TEST = {
    *VISION,
    "qwen3_vl_moe_text",
    "gptj",
    "codegen",
    "deepseek_v2",
    "deepseek_v3",
    "kimi_k2",
    "glm4_moe_lite",
    "gemma3_text",
}
"""No RotaryEmbedding class, a latent cache, positions of three parts, or not part of transformers: tested by
themselves."""


def config_of(model_type: str) -> Any:
    # Falcon derives the size of a head and lets nobody set it.
    fields = {key: value for key, value in SMALL.items() if (model_type, key) != ("falcon", "head_dim")}
    return AutoConfig.for_model(model_type, **fields)


def applied(model_type: str, keys: Tensor, position: int) -> Tensor:
    """``keys`` [1, heads, 1, dim] at ``position``, by the architecture's own code."""
    modeling = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    rotaries = [value for name, value in inspect.getmembers(modeling) if name.endswith("RotaryEmbedding")]
    assert len(rotaries) == 1
    cos, sin = rotaries[0](config_of(model_type))(keys, torch.tensor([[position]]))
    size = cos.shape[-1] * (2 if model_type == "gpt_oss" else 1)
    turning = keys[..., :size]
    _, turned = modeling.apply_rotary_pos_emb(turning, turning, cos, sin)
    return torch.cat((turned, keys[..., size:]), -1)


@pytest.mark.parametrize("model_type", sorted(FAMILIES.keys() - OWN_TEST))
def test_an_architecture_rotates_as_listed(model_type: str) -> None:
    rotation = Rotation.from_config(config_of(model_type))
    keys = torch.randn(1, 2, 1, rotation.key_dim, generator=torch.Generator().manual_seed(0))
    stored, wanted = applied(model_type, keys, 17), applied(model_type, keys, 90)
    moved = rotation.rotate(stored, 73)
    assert (moved - wanted).abs().max() <= 2e-5 * wanted.abs().max()
    assert (stored - wanted).abs().max() > 0.1


@pytest.mark.parametrize("model_type", sorted(FAMILIES.keys() - OWN_TEST))
def test_the_defaults_are_the_architectures(model_type: str) -> None:
    bare = {"model_type": model_type, **SMALL}
    full = config_of(model_type)
    if full.rope_parameters["rope_type"] != "default":
        with pytest.raises(UnsupportedRotationError, match="needs rope_parameters"):
            Rotation.from_config(bare)
        return
    ours, theirs = Rotation.from_config(bare), Rotation.from_config(full)
    assert (ours.size, ours.frequencies.tolist()) == (theirs.size, theirs.frequencies.tolist())


def test_codegen_pairs_neighbours() -> None:
    from transformers.models.codegen import modeling_codegen as codegen

    rotation = Rotation.from_config(AutoConfig.for_model("codegen", n_embd=128, n_head=2, rotary_dim=32))
    table = codegen.create_sinusoidal_positions(128, 32)
    keys = torch.randn(1, 1, 2, 32, generator=torch.Generator().manual_seed(0))
    stored, wanted = (codegen.apply_rotary_pos_emb(keys, *table[at][None, None].chunk(2, -1)) for at in (17, 90))
    assert (rotation.size, rotation.interleaved) == (32, True)
    whole = torch.cat((stored, keys), -1)  # The half of the head that does not turn.
    moved = rotation.rotate(whole[0], 73)
    assert (moved[..., :32] - wanted[0]).abs().max() <= 1e-4
    assert torch.equal(moved[..., 32:], keys[0])


@pytest.mark.parametrize("model_type", VISION)
def test_on_text_positions_of_three_parts_turn_keys_as_one(model_type: str) -> None:
    package = VISION[model_type]
    modeling = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
    config = AutoConfig.for_model(package)
    text = type(config.text_config)(
        **SMALL, rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}
    )
    with pytest.raises(UnsupportedRotationError, match="mrope_section"):
        Rotation.from_config(text)
    rotation = Rotation.from_config(text, text_only=True)
    rotary = next(
        value
        for name, value in vars(modeling).items()
        if name.endswith("TextRotaryEmbedding") or name in ("Qwen2VLRotaryEmbedding", "Qwen2_5_VLRotaryEmbedding")
    )(text)
    apply = getattr(modeling, "apply_multimodal_rotary_pos_emb", None) or modeling.apply_rotary_pos_emb

    def at(position: int) -> Tensor:
        cos, sin = rotary(keys, torch.full((3, 1, 1), position))
        more = ([8, 12, 12],) if apply.__name__.startswith("apply_multimodal") else ()
        turned: Tensor = apply(keys, keys, cos, sin, *more)[1]
        return turned

    keys = torch.randn(1, 2, 1, rotation.key_dim, generator=torch.Generator().manual_seed(0))
    stored, wanted = at(17), at(90)
    moved = rotation.rotate(stored, 73)
    assert (moved - wanted).abs().max() <= 2e-5 * wanted.abs().max()
    assert (stored - wanted).abs().max() > 0.1
