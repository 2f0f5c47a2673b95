"""What a transformers model must be for the reference engine to run it, found out before the first request."""

from __future__ import annotations

from typing import Any

import torch

from semblend_core.reference.attention import IMPLEMENTATION
from semblend_core.reference.unsupported import UnsupportedModelError
from semblend_core.reference.workspace import KvGeometry


def adopt_attention(model: Any) -> None:
    """Direct the model's attention to the reference engine, or refuse a model that has no such switch."""
    model.set_attn_implementation(IMPLEMENTATION)
    if model.config._attn_implementation != IMPLEMENTATION:
        raise UnsupportedModelError(
            f"{type(model).__name__} computes attention in its own code, not through transformers' AttentionInterface"
        )


def token_limit(config: Any, asked: int | None) -> int:
    """How many tokens a request may have: what was asked for, or all that the model's positions allow."""
    positions: int | None = getattr(config, "max_position_embeddings", None)
    limit = asked or positions
    if limit is None:
        raise UnsupportedModelError("its config names no max_position_embeddings: pass max_tokens")
    if positions is not None and limit > positions:
        raise UnsupportedModelError(f"max_tokens={limit} is beyond the model's {positions} positions")
    window = _sliding_window(config)
    if window is not None and limit > window:
        raise UnsupportedModelError(
            f"its attention slides over {window} tokens, so the KV of a longer prompt is not what relocation assumes: "
            f"pass max_tokens={window} to use it within its window"
        )
    return limit


def kv_geometry(model: Any) -> KvGeometry:
    """The shape of the model's KV, from what it really writes into a cache."""
    config = model.config.get_text_config()
    with torch.no_grad():
        tokens = torch.zeros((1, 2), dtype=torch.int64, device=model.device)
        cache = model(input_ids=tokens, use_cache=True).past_key_values
    written = [layer for layer in getattr(cache, "layers", []) if getattr(layer, "keys", None) is not None]
    if len(written) != config.num_hidden_layers:
        raise UnsupportedModelError(
            f"only {len(written)} of its {config.num_hidden_layers} layers have keys and values"
        )
    shapes = {(tuple(layer.keys.shape), tuple(layer.values.shape)) for layer in written}
    if len(shapes) != 1:
        raise UnsupportedModelError(f"its layers have KV of different shapes: {sorted(shapes)}")
    (_, kv_heads, _, key_dim), (_, _, _, value_dim) = shapes.pop()
    keys = written[0].keys
    return KvGeometry(len(written), kv_heads, key_dim, value_dim, keys.dtype, keys.device)


def _sliding_window(config: Any) -> int | None:
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
        if unknown:
            raise UnsupportedModelError(f"it has layers of the kinds {unknown}, not only full attention")
        return window if "sliding_attention" in kinds else None
    return window if getattr(config, "use_sliding_window", True) else None
