"""Other architectures and rotations, small, with random weights: the same equalities, or a refusal with its reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra `reference`")
pytest.importorskip("transformers", reason="needs the extra `reference`")

import torch
import transformers

from semblend_core import Plan, Row, RowKind, Span
from semblend_core.reference import ReferenceEngine, UnsupportedModelError

SMALL: dict[str, Any] = {
    "vocab_size": 500,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 2048}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
GPT = {"vocab_size": 500, "n_embd": 64, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}

SUPPORTED = {
    "llama3": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "linear": ("LlamaConfig", {"rope_parameters": LINEAR}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2 with yarn": ("Qwen2Config", {"rope_parameters": YARN}),
    "qwen3, wider heads": ("Qwen3Config", {"head_dim": 32}),
    "qwen3 moe": (
        "Qwen3MoeConfig",
        {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    "glm, interleaved and partial": ("GlmConfig", {"head_dim": 16}),
    "cohere, interleaved": ("CohereConfig", {}),
    "phi, partial": ("PhiConfig", {"num_key_value_heads": 4}),
    "stablelm, partial": ("StableLmConfig", {"partial_rotary_factor": 0.25}),
    "gpt-neox": ("GPTNeoXConfig", {}),
    "gemma": ("GemmaConfig", {"head_dim": 16}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
}


def model_of(config: str, fields: dict[str, Any]) -> Any:
    torch.manual_seed(11)
    return transformers.AutoModelForCausalLM.from_config(getattr(transformers, config)(**fields))


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_equalities_hold(name: str) -> None:
    config, changes = SUPPORTED[name]
    engine = ReferenceEngine.of(model_of(config, {**SMALL, **changes}))
    tokens = np.random.default_rng(5).integers(3, 500, 330)
    with torch.no_grad():
        plain = engine.model(torch.from_numpy(tokens)[None]).logits[0]
    cold = engine.prefill(tokens)
    assert float((cold.logits - plain[-1]).abs().max()) <= 1e-3

    donor_tokens = np.concatenate([tokens[:7], tokens[40:300]])
    donor = engine.capture(engine.prefill(donor_tokens).workspace, donor_tokens.size)
    span = Span(40, "donor", 7, 260)
    plan = Plan.over("full", 330, 9, [span], [Row(40, 260, RowKind.CHOSEN)])
    full = engine.sparse_prefill(tokens, plan, {"donor": donor}, exact_prefix=engine.capture(cold.workspace, 9))
    assert float((full.logits - plain[-1]).abs().max()) <= 1e-3
    moved = engine.place_plan(Plan.over("moved", 330, 0, [span]), {"donor": donor})
    expected = cold.workspace.keys[0, 40:300]
    assert float((moved.keys[0, 40:300] - expected).norm() / expected.norm()) <= 1e-5


REFUSED = {
    "no rotary embedding": ("GPT2Config", GPT, "no rotary embedding"),
    "alibi": ("BloomConfig", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 500}, "no rotary embedding"),
    "dynamic frequencies": ("LlamaConfig", {**SMALL, "rope_parameters": DYNAMIC}, "rope_type='dynamic'"),
    "attention in its own code": (
        "GPTJConfig",
        {**GPT, "n_positions": 4096, "rotary_dim": 8},
        "not through transformers' AttentionInterface",
    ),
    "a window shorter than its context": (
        "MistralConfig",
        {**SMALL, "sliding_window": 1024},
        "slides over 1024 tokens.*max_tokens=1024",
    ),
    "capped attention scores": ("Gemma2Config", {**SMALL, "head_dim": 16, "max_position_embeddings": 512}, "softcap"),
    "an architecture that nobody has looked at": (
        "Qwen3NextConfig",
        {**SMALL, "head_dim": 16, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
        "model_type='qwen3_next' is not known",
    ),
    "layers that see a part only": (
        "Qwen2Config",
        {**SMALL, "layer_types": ["full_attention", "full_attention", "chunked_attention"]},
        "layers of the kinds \\['chunked_attention'\\]",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_model_that_would_be_served_wrongly_is_refused_when_it_is_wrapped(why: str) -> None:
    config, fields, reason = REFUSED[why]
    model = model_of(config, fields)
    with pytest.raises(UnsupportedModelError, match=reason) as refusal:
        ReferenceEngine.of(model)
    assert type(model).__name__ in str(refusal.value)


def test_a_window_is_fine_for_prompts_within_it() -> None:
    model = model_of("MistralConfig", {**SMALL, "sliding_window": 1024})
    engine = ReferenceEngine.of(model, max_tokens=1024)
    tokens = np.random.default_rng(5).integers(3, 500, 600)
    with torch.no_grad():
        plain = model(torch.from_numpy(tokens)[None]).logits[0, -1]
    assert float((engine.prefill(tokens).logits - plain).abs().max()) <= 1e-3
    with pytest.raises(ValueError, match="max_tokens=1024"):
        engine.workspace(1025)


def test_a_wrong_rotation_is_noticed_when_the_model_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    from semblend_core.kv.rotation import Rotation

    true_rotation = Rotation.from_config
    # As if the list of architectures were wrong about which components of a key form a pair.
    monkeypatch.setattr(Rotation, "from_config", lambda config: true_rotation(config, interleaved=True))
    with pytest.raises(UnsupportedModelError, match="differs from computed K"):
        ReferenceEngine.of(model_of("Qwen2Config", SMALL))


def test_frequencies_that_a_cast_rounded_are_noticed() -> None:
    model = model_of("LlamaConfig", SMALL).to(torch.bfloat16)
    with pytest.raises(UnsupportedModelError, match=r"rotary frequencies were rounded to torch\.bfloat16.*dtype="):
        ReferenceEngine.of(model)


def test_engines_do_not_get_in_each_others_way() -> None:
    one, other = (ReferenceEngine.of(model_of(config, SMALL)) for config in ("Qwen2Config", "LlamaConfig"))
    tokens = np.random.default_rng(5).integers(3, 500, 50)
    alone = other.prefill(tokens).logits
    inside: list[torch.Tensor] = []
    one.compute(
        one.workspace(50),
        tokens,
        range(50),
        observer=lambda observation: inside.append(other.prefill(tokens).logits),
        observed_layers=(1,),
    )
    assert torch.equal(inside[0], alone)
    assert torch.equal(one.prefill(tokens).logits, one.prefill(tokens).logits)
