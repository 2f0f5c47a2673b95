"""A model of Gemma 3's shape, whose windows turn keys faster, with random weights and SmolLM2's tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from semblend_core.testing.shallow_model import shallow_model_folder

WINDOW = 128
KINDS = ["sliding_attention", "sliding_attention", "full_attention"] * 2
ROTATIONS = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
}
QUIETER = 0.1
"""What a token is itself counts for more than what stands before it, as in trained models."""


def write_two_rotations_model(folder: Path) -> Path:
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        vocab_size=49152,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=len(KINDS),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        query_pre_attn_scalar=16,
        max_position_embeddings=2048,
        sliding_window=WINDOW,
        layer_types=KINDS,
        rope_parameters=ROTATIONS,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.08,
    )
    torch.manual_seed(11)
    model: Any = Gemma3ForCausalLM(config)
    model.to(torch.float32)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.post_attention_layernorm.weight.fill_(QUIETER - 1)
    model.save_pretrained(folder)
    for file in shallow_model_folder().glob("*token*"):
        shutil.copy(file, folder)
    return folder
