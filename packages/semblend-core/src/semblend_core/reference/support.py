"""What a transformers model must be for the reference engine to run it, found out before the first request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from semblend_core.reference.attention import IMPLEMENTATION, UnsupportedModelError
from semblend_core.reference.workspace import KvGeometry

if TYPE_CHECKING:
    from semblend_core.reference.engine import ReferenceEngine


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


_PERIOD, _TIMES = 4, 8
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def check_that_layers_report(engine: ReferenceEngine) -> None:
    """A layer that keeps KV elsewhere, or attends in its own code, would be served wrongly and silently."""
    seen: list[int] = []
    engine.compute(engine.workspace(2), [0, 0], [0, 1], observer=lambda observation: seen.append(observation.layer))
    if seen != list(range(engine.geometry.layers)):
        raise UnsupportedModelError(
            f"of {engine.geometry.layers} layers only {sorted(set(seen))} attend through transformers' interface"
        )


def check_rotation(engine: ReferenceEngine) -> None:
    """Layer-0 K depends on token and position alone, so K moved by the rotation must equal K computed there."""
    written, turned = engine.geometry.key_dim, engine.rotation.key_dim
    if written != turned:
        raise UnsupportedModelError(
            f"it caches keys of {written} components, and its config's rotation is for {turned}"
        )
    _refuse_rounded_frequencies(engine)
    tokens = [*range(1, _PERIOD + 1)] * _TIMES
    workspace = engine.workspace(len(tokens))
    engine.compute(workspace, tokens, np.arange(len(tokens)), logits="none")
    shift = len(tokens) - _PERIOD
    moved = engine.rotation.rotate(workspace.keys[0, :_PERIOD], shift).float()
    computed = workspace.keys[0, shift:].float()
    error = float((moved - computed).norm() / computed.norm())
    if not error <= _TOLERANCE.get(engine.geometry.dtype, max(_TOLERANCE.values())):
        raise UnsupportedModelError(f"K rotated as its config says differs from computed K by {error:.1e} (relative)")


def _refuse_rounded_frequencies(engine: ReferenceEngine) -> None:
    # `model.to(bfloat16)` rounds them: the model then turns keys otherwise than its config says, more so further on.
    rounded = {
        buffer.dtype
        for name, buffer in engine.model.named_buffers()
        if "inv_freq" in name and buffer.dtype.itemsize < 4
    }
    if rounded:
        raise UnsupportedModelError(
            f"its rotary frequencies were rounded to {rounded.pop()} by a cast: load it with dtype=... instead"
        )
