"""Which configs give a rotation, which one, and how the others are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
from transformers import AutoConfig, Gemma3TextConfig, GPT2Config, SmolLM3Config

from semblend_core.kv.rotation import Rotation, UnsupportedRotationError, why_keys_do_not_move

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
}
DEEPSEEK: dict[str, Any] = {"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "rope_theta": 1e4}


def described(rotation: Rotation) -> tuple[int, int, int, bool]:
    return rotation.key_dim, rotation.start, rotation.size, rotation.interleaved


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, (64, 0, 64, False)),
        ({**LLAMA, "head_dim": 128}, (128, 0, 128, False)),
        ({**LLAMA, "head_dim": None}, (64, 0, 64, False)),
        ({**LLAMA, "model_type": "phi"}, (64, 0, 32, False)),
        ({**LLAMA, "model_type": "phi", "partial_rotary_factor": 0.25}, (64, 0, 16, False)),
        ({**LLAMA, "model_type": "gpt_neox", "rotary_pct": 0.5, "rotary_emb_base": 1e4}, (64, 0, 32, False)),
        ({**LLAMA, "model_type": "minimax_m2", "rotary_dim": 48}, (64, 0, 48, False)),
        ({**LLAMA, "model_type": "glm4"}, (64, 0, 32, True)),
        ({"model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": 64}, (256, 0, 64, True)),
        (DEEPSEEK, (576, 512, 64, True)),
        ({**DEEPSEEK, "rope_interleave": False}, (576, 512, 64, False)),
        ({**DEEPSEEK, "model_type": "kimi_k2"}, (576, 512, 64, True)),
    ],
)
def test_a_config_says_which_part_turns(config: dict[str, Any], expected: tuple[int, int, int, bool]) -> None:
    assert described(Rotation.from_config(config)) == expected


def same(left: Rotation, right: Rotation) -> bool:
    return described(left) == described(right) and left.frequencies.tolist() == right.frequencies.tolist()


YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"rope_theta": 1e6}, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
        (
            {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", **YARN}},
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, **YARN}},
        ),
        (
            {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", **YARN}},
            {"rope_parameters": {"rope_type": "deepseek_yarn", "rope_theta": 1e6, **YARN}},
        ),
        (
            {"rope_theta": 1e6, "partial_rotary_factor": 0.5},
            {"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}},
        ),
        (
            {"rope_theta": 1e6},
            {
                "rope_parameters": {
                    layers: {"rope_type": "default", "rope_theta": 1e6}
                    for layers in ("full_attention", "sliding_attention")
                }
            },
        ),
    ],
)
def test_both_spellings_mean_the_same(old: dict[str, Any], new: dict[str, Any]) -> None:
    bare = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    assert same(Rotation.from_config({**bare, **old}), Rotation.from_config({**bare, **new}))


@pytest.mark.parametrize(
    "config",
    [
        AutoConfig.for_model("llama", hidden_size=256, num_attention_heads=4, rope_theta=5e5),
        AutoConfig.for_model("phi", hidden_size=256, num_attention_heads=4),
        AutoConfig.for_model("cohere", hidden_size=256, num_attention_heads=4),
    ],
    ids=lambda config: config.model_type,
)
def test_an_object_and_its_dict_give_the_same_rotation(config: Any) -> None:
    assert same(Rotation.from_config(config), Rotation.from_config(config.to_dict()))


def test_a_default_theta_is_the_architectures() -> None:
    bare = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    mixtral = AutoConfig.for_model("mixtral", hidden_size=256, num_attention_heads=4)
    assert same(Rotation.from_config({**bare, "model_type": "mixtral"}), Rotation.from_config(mixtral))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type='dynamic'"),
        ({**LLAMA, "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "rope_type='longrope'"),
        ({**LLAMA, "model_type": "phi3", "rope_scaling": {"type": "su"}}, "rope_type='su'"),
        ({**LLAMA, "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}}, "mrope_section=[8, 12, 12]"),
        ({**LLAMA, "rope_scaling": {"type": "mrope"}}, "rope_type='mrope'"),
        # transformers rewrites mrope to default and leaves the section.
        ({**LLAMA, "rope_parameters": {"rope_type": "default", "mrope_section": [8]}}, "mrope_section=[8]"),
        ({**LLAMA, "rope_scaling": {"type": "quantum"}}, "rope_type='quantum'"),
        ({**LLAMA, "rope_scaling": {"type": "linear"}}, "factor > 0, got None"),
        ({**LLAMA, "rope_scaling": {"type": "linear", "factor": 0}}, "factor > 0, got 0"),
        ({**LLAMA, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor > 0, got None"),
        ({**LLAMA, "rope_scaling": {"type": "yarn"}, "max_position_embeddings": None}, "original_max_position"),
        ({**LLAMA, "dual_chunk_attention_config": {"chunk_size": 8192}}, "dual_chunk_attention_config="),
        ({**LLAMA, "no_rope_layers": [1, 1, 0]}, "no_rope_layers=[1, 1, 0]"),
        ({**LLAMA, "use_rope": False}, "use_rope=False"),
        ({**LLAMA, "model_type": "falcon", "alibi": True}, "alibi=True"),
        ({**LLAMA, "partial_rotary_factor": 0.02}, "cannot rotate 1 of a key's 64"),
        ({**LLAMA, "rope_scaling": {"type": "linear"}, "rope_parameters": {"type": "yarn"}}, "contradict"),
        ({**LLAMA, "rope_parameters": {"a": {"rope_theta": 1e4}, "b": {"rope_theta": 1e6}}}, "differ between layers"),
        (
            {**LLAMA, "layer_types": ["full", "nope"], "rope_parameters": {"full": {"rope_theta": 1e4}, "nope": None}},
            "differ between layers",
        ),
        ({**LLAMA, "model_type": "brand_new"}, "model_type='brand_new' is not known"),
        ({**DEEPSEEK, "model_type": "brand_new"}, "model_type='brand_new' is not known among models with kv_lora_rank"),
        ({**DEEPSEEK, "kv_lora_rank": None}, "kv_lora_rank=None"),
        ({"model_type": "gptj", "n_embd": 64, "n_head": 2, "rotary_dim": None}, "rotary_dim=None"),
        ({"model_type": "llama", "rope_theta": 1e4}, "neither head_dim nor hidden_size"),
        ({"model_type": "llava", "text_config": LLAMA}, "pass its text_config"),
        (GPT2Config(), "model_type='gpt2' has no rotary embedding"),
        ({"model_type": "bloom", "hidden_size": 64, "n_head": 4}, "model_type='bloom' has no rotary embedding"),
        (SmolLM3Config(), "model_type='smollm3'"),
        (Gemma3TextConfig(), "differ between layers"),
        ({**LLAMA, "rope_theta": 1e6, "rope_local_base_freq": 1e4}, "rope_local_base_freq=10000.0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_model_whose_keys_do_not_move_is_refused_by_name(config: Any, named: str) -> None:
    with pytest.raises(UnsupportedRotationError, match=re.escape(named)):
        Rotation.from_config(config)


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}},
        {"rope_scaling": {"rope_type": "default", "mrope_section": [8, 12, 12]}},
        {"rope_parameters": {"rope_type": "mrope", "rope_theta": 1e4, "mrope_section": [8], "mrope_interleaved": True}},
    ],
)
def test_on_text_alone_positions_of_several_parts_are_plain_ones(spelling: dict[str, Any]) -> None:
    config = {**LLAMA, "rope_theta": 1e4, "model_type": "qwen2_vl_text"}
    plain = Rotation.from_config({**config, "model_type": "qwen2"})
    assert same(Rotation.from_config({**config, **spelling}, text_only=True), plain)
    assert why_keys_do_not_move({**config, **spelling}) is not None
    assert why_keys_do_not_move({**config, **spelling}, text_only=True) is None


def test_what_does_not_turn_evenly_on_text_is_refused_there_too() -> None:
    with pytest.raises(UnsupportedRotationError, match="dynamic"):
        Rotation.from_config({**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, text_only=True)


def test_layers_that_differ_are_refused_even_when_the_pairing_is_given() -> None:
    with pytest.raises(UnsupportedRotationError, match="no_rope_layers"):
        Rotation.from_config(SmolLM3Config(), interleaved=False)
    with pytest.raises(UnsupportedRotationError, match="differ between layers"):
        Rotation.from_config(Gemma3TextConfig(), interleaved=False)


def test_an_unknown_architecture_turns_as_it_is_told() -> None:
    config = {**LLAMA, "model_type": "brand_new"}
    assert same(Rotation.from_config(config, interleaved=False), Rotation.from_config(LLAMA))
    assert Rotation.from_config(config, interleaved=True).interleaved


def test_what_is_no_config_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="got str"):
        Rotation.from_config("llama")
