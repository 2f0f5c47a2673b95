"""A model with latent attention (MLA) of DeepSeek-V2's shape, with random weights and SmolLM2's tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from semblend_core.testing.shallow_model import shallow_model_folder

LAYERS = 4
SHARPER = 2.0
"""Random projections attend to everything alike, and would forgive what is moved wrongly."""
QUIETER = 0.06
"""What a token is itself counts for more than what stands before it, as in trained models."""
DECIDED = 4.0
"""Random answers are nearly all alike, and which comes first would be chance."""
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 512,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
"""As in DeepSeek-V2's own checkpoints, for fewer tokens."""


def write_latent_model(folder: Path, *, yarn: bool = False) -> Path:
    """``yarn``: with scaled rotary embeddings, the only ones that SGLang has for such models on a CPU."""
    import torch
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    source = shallow_model_folder()
    # No layer has experts, and SGLang asks for their frequency all the same.
    more: dict[str, Any] = {"moe_layer_freq": 1} | ({"rope_parameters": YARN} if yarn else {})
    config = DeepseekV2Config(
        vocab_size=49152,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=LAYERS,
        first_k_dense_replace=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=None,
        # The only sizes that vLLM's attention for CPUs knows.
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=32,
        v_head_dim=32,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.08,
        **more,
    )
    torch.manual_seed(7)
    model: Any = DeepseekV2ForCausalLM(config)
    model.to(torch.float32)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(8.0)
        model.lm_head.weight.mul_(DECIDED)
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(SHARPER)
            layer.self_attn.o_proj.weight.mul_(QUIETER)
    model.save_pretrained(folder)
    for file in source.glob("*token*"):
        shutil.copy(file, folder)
    return folder
