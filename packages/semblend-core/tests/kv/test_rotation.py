"""Moving keys gives what transformers' own rotary code gives at the new position."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from semblend_core.kv.rotation import Rotation

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
SMALL = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 131072}


@dataclass(frozen=True)
class Model:
    """One of transformers' modeling modules and a config for it."""

    module: str
    prefix: str
    fields: dict[str, Any]

    @property
    def modeling(self) -> Any:
        return importlib.import_module(f"transformers.models.{self.module}.modeling_{self.module}")

    @property
    def config(self) -> Any:
        module = importlib.import_module(f"transformers.models.{self.module}.configuration_{self.module}")
        return getattr(module, f"{self.prefix}Config")(**self.fields)


MODELS = {
    "llama": Model("llama", "Llama", {**SMALL, "rope_theta": 10000.0}),
    "qwen2": Model("qwen2", "Qwen2", {**SMALL, "rope_theta": 1e6}),
    "qwen3": Model("qwen3", "Qwen3", {**SMALL, "head_dim": 128, "rope_theta": 1e6}),
    "mistral": Model("mistral", "Mistral", {**SMALL, "head_dim": 64, "rope_theta": 1e6}),
    "linear": Model("llama", "Llama", {**SMALL, "rope_scaling": {"type": "linear", "factor": 4.0}}),
    "llama3": Model("llama", "Llama", {**SMALL, "rope_theta": 5e5, "rope_scaling": LLAMA3}),
    "yarn": Model("qwen2", "Qwen2", {**SMALL, "rope_theta": 1e6, "rope_scaling": YARN}),
    "yarn, new spelling": Model("qwen3", "Qwen3", {**SMALL, "rope_parameters": {**YARN, "rope_theta": 1e6}}),
    "gpt_oss": Model("gpt_oss", "GptOss", SMALL),
    "phi": Model("phi", "Phi", {**SMALL, "partial_rotary_factor": 0.5}),
    "glm": Model("glm", "Glm", {**SMALL, "head_dim": 64}),
    "deepseek_v3": Model("deepseek_v3", "DeepseekV3", {**SMALL, "rope_interleave": False}),
}
SHIFTS = [1, -1, 49, -313, 8191, -4096]


def apply_at(model: Model, keys: Tensor, positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """``keys`` [tokens, heads, dim] with transformers' rotary embedding at ``positions``.

    In float64 the embedding's own frequencies are taken and only the angle and its cosine are made more exactly: in
    float32 ``position * frequency`` alone is off by 0.004 rad at position 100,000.
    """
    rotary = getattr(model.modeling, f"{model.prefix}RotaryEmbedding")(model.config)
    if dtype == torch.float32:
        cos, sin = rotary(keys, positions[None])
    else:
        angles = positions.double()[:, None] * rotary.inv_freq.double()
        if model.module != "gpt_oss":
            angles = torch.cat((angles, angles), -1)
        cos, sin = (part[None] * rotary.attention_scaling for part in (angles.cos(), angles.sin()))
    size = cos.shape[-1] * (2 if model.module == "gpt_oss" else 1)
    turning = keys[None].transpose(1, 2).to(dtype)[..., :size]
    _, turned = model.modeling.apply_rotary_pos_emb(turning, turning, cos, sin)
    return torch.cat((turned.transpose(1, 2)[0], keys[..., size:].to(dtype)), -1)


def error(got: Tensor, wanted: Tensor) -> float:
    return float((got.double() - wanted.double()).abs().max() / wanted.double().abs().max())


def key_dim(model: Model) -> int:
    return int(getattr(model.config, "head_dim", None) or 64)


def rotation_of(model: Model) -> Rotation:
    rotation = Rotation.from_config(model.config)
    # Only the rotated part of MLA's cache is compared.
    return (
        Rotation(rotation.size, 0, rotation.size, rotation.interleaved, rotation.frequencies)
        if rotation.start
        else rotation
    )


@pytest.mark.parametrize("name", MODELS)
def test_frequencies_are_the_models_own_bit_by_bit(name: str) -> None:
    model = MODELS[name]
    own = getattr(model.modeling, f"{model.prefix}RotaryEmbedding")(model.config).inv_freq
    assert Rotation.from_config(model.config).frequencies.astype(np.float32).tolist() == own.tolist()


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("name", MODELS)
def test_a_moved_key_is_the_key_of_the_new_position(name: str, shift: int) -> None:
    model = MODELS[name]
    keys = torch.randn(8, 2, key_dim(model), generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([5000, 5001, 9000, 32767, 60000, 99999, 100000, 120000])
    stored = apply_at(model, keys, positions, torch.float64).float()
    wanted = apply_at(model, keys, positions + shift, torch.float64)
    assert error(rotation_of(model).rotate(stored, shift), wanted) <= 1e-5
    assert error(stored, wanted) > 1e-3  # The move was needed.


@pytest.mark.parametrize("name", MODELS)
def test_what_is_left_against_float32_angles_is_the_models_own_rounding(name: str) -> None:
    model = MODELS[name]
    keys = torch.randn(6, 2, key_dim(model), generator=torch.Generator().manual_seed(2))
    for positions, shift in (([3, 7, 20, 31, 40, 63], 60), ([900, 2000, 4000, 8000, 30000, 100000], -800)):
        where = torch.tensor(positions)
        stored = apply_at(model, keys, where)
        wanted = apply_at(model, keys, where + shift)
        roundings = 2.0**-23 * max(positions)
        assert error(rotation_of(model).rotate(stored, shift), wanted) <= 1e-5 + roundings


@pytest.mark.parametrize("shift", SHIFTS)
def test_gptj_keys_move_in_neighbouring_pairs(shift: int) -> None:
    from transformers import GPTJConfig
    from transformers.models.gptj import modeling_gptj as gptj

    config = GPTJConfig(n_embd=256, n_head=4, rotary_dim=32)
    rotation = Rotation.from_config(config)
    assert (rotation.start, rotation.size, rotation.key_dim, rotation.interleaved) == (0, 32, 64, True)
    keys = torch.randn(1, 4, 4, 64, generator=torch.Generator().manual_seed(3))
    positions = torch.tensor([4200, 5000, 20000, 100000])

    def at(where: Tensor) -> Tensor:
        own = gptj.create_sinusoidal_positions(2, 32)[1]  # Angles of position 1: the frequencies.
        frequencies = torch.asin(own[:16].double())
        assert torch.allclose(frequencies, torch.from_numpy(rotation.frequencies), rtol=1e-6)
        angles = where.double()[:, None] * torch.from_numpy(rotation.frequencies)
        turned = gptj.apply_rotary_pos_emb(keys[..., :32].double(), angles.sin()[None], angles.cos()[None])
        return torch.cat((turned, keys[..., 32:].double()), -1)[0]

    assert error(rotation.rotate(at(positions).float(), shift), at(positions + shift)) <= 1e-5


def test_gptj_keys_of_its_own_table_move() -> None:
    from transformers import GPTJConfig
    from transformers.models.gptj import modeling_gptj as gptj

    rotation = Rotation.from_config(GPTJConfig(n_embd=256, n_head=4, rotary_dim=64).to_dict())
    table = gptj.create_sinusoidal_positions(256, 64)
    keys = torch.randn(1, 3, 4, 64, generator=torch.Generator().manual_seed(3))
    at = [gptj.apply_rotary_pos_emb(keys, *table[where][None].chunk(2, -1)) for where in ([2, 5, 60], [33, 36, 91])]
    assert error(rotation.rotate(at[0][0], 31), at[1][0]) <= 1e-5 + 2.0**-23 * 91


def test_deepseek_v2_turns_the_part_after_the_latent() -> None:
    from transformers import AutoConfig
    from transformers.models.deepseek_v2 import modeling_deepseek_v2 as deepseek

    yarn = {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
    }
    config: Any = AutoConfig.for_model("deepseek_v2", **SMALL, kv_lora_rank=128, qk_rope_head_dim=32, rope_scaling=yarn)
    rotation = Rotation.from_config(config)
    assert (rotation.start, rotation.size, rotation.key_dim, rotation.interleaved) == (128, 32, 160, True)
    cache = torch.randn(5, 1, 160, generator=torch.Generator().manual_seed(4))
    rotary = deepseek.DeepseekV2RotaryEmbedding(config)

    def at(positions: Tensor) -> Tensor:
        angles = positions.double()[:, None] * rotary.inv_freq.double()
        turning = cache[None, ..., 128:].transpose(1, 2)
        _, turned = deepseek.apply_rotary_emb(turning, turning, torch.polar(torch.ones_like(angles), angles)[None])
        return torch.cat((cache[..., :128], turned.transpose(1, 2)[0]), -1)

    positions = torch.tensor([0, 70, 4096, 99990, 100001])
    assert error(rotation.rotate(at(positions), 333), at(positions + 333)) <= 1e-5


@pytest.mark.parametrize("model_type", ["deepseek_v3", "kimi_k2", "glm4_moe_lite"])
def test_others_with_latents_turn_as_deepseek_v2(model_type: str) -> None:
    fields = {"kv_lora_rank": 128, "qk_rope_head_dim": 32, "rope_theta": 1e6}
    first = Rotation.from_config({"model_type": "deepseek_v2", **fields})
    other = Rotation.from_config({"model_type": model_type, **fields})
    keys = torch.randn(3, 1, 160)
    assert torch.equal(first.rotate(keys, 5), other.rotate(keys, 5))


DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_moving_by_nothing_keeps_every_bit(dtype: torch.dtype, interleaved: bool) -> None:
    rotation = Rotation.from_config({"model_type": "llama", "head_dim": 64}, interleaved=interleaved)
    keys = torch.randn(9, 3, 64).to(dtype)
    keys[0, 0, :4] = torch.tensor([-0.0, 0.0, float("inf"), -float("inf")]).to(dtype)
    keys[0, 0, 32:36] = -1.0
    as_bits = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(rotation.rotate(keys, 0).view(as_bits), keys.view(as_bits))


MODEL_SHIFT = st.integers(-200_000, 200_000)


@settings(max_examples=60, deadline=None)
@given(MODEL_SHIFT, MODEL_SHIFT, st.booleans(), st.sampled_from([1.0, 0.5, 0.25]))
def test_two_moves_are_one_by_the_sum(first: int, second: int, interleaved: bool, share: float) -> None:
    config = {"model_type": "llama", "head_dim": 64, "rope_theta": 5e5, "partial_rotary_factor": share}
    rotation = Rotation.from_config(config, interleaved=interleaved)
    keys = torch.randn(4, 2, 64, generator=torch.Generator().manual_seed(first % 1000))
    twice = rotation.rotate(rotation.rotate(keys, first), second)
    assert error(twice, rotation.rotate(keys, first + second)) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_keys_saturate_and_keep_what_is_not_a_number(dtype: torch.dtype) -> None:
    rotation = Rotation.from_config({"model_type": "llama", "head_dim": 16})
    largest = torch.finfo(dtype).max
    keys = torch.full((3, 2, 16), largest).to(dtype)
    keys[1, 0, 3] = float("nan")
    moved = rotation.rotate(keys, [5, 2, 0]).float()
    wanted = rotation.rotate(keys.float(), [5, 2, 0]).clamp(-largest, largest).to(dtype).float()
    assert torch.equal(moved.isnan(), wanted.isnan())
    assert int(moved.isnan().sum()) == 2, "the pair of the one that was not a number"
    assert torch.equal(moved.nan_to_num(), wanted.nan_to_num())


@pytest.mark.parametrize("number", [int, np.int64, np.int32])
def test_a_shift_is_any_kind_of_integer(number: Callable[[int], int]) -> None:
    rotation = Rotation.from_config({"model_type": "llama", "head_dim": 16})
    keys = torch.randn(3, 2, 16)
    assert torch.equal(rotation.rotate(keys, number(7)), rotation.rotate(keys, [7, 7, 7]))


def test_each_token_moves_by_its_own_shift() -> None:
    rotation = Rotation.from_config({"model_type": "llama", "head_dim": 16})
    keys = torch.randn(3, 2, 16)
    moved = rotation.rotate(keys, [5, 0, -7])
    for token, shift in enumerate((5, 0, -7)):
        assert torch.equal(moved[token], rotation.rotate(keys[token : token + 1], shift)[0])


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda rotation: rotation.rotate(torch.zeros(2, 1, 8), 1), "8 components, the rotation is for 16"),
        (lambda rotation: rotation.rotate(torch.zeros(2, 1, 16), [1, 2, 3]), "2 keys need as many shifts"),
    ],
)
def test_keys_that_do_not_fit_are_refused(call: Callable[[Rotation], Tensor], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        call(Rotation.from_config({"model_type": "llama", "head_dim": 16}))
