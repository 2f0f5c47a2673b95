"""What SGLang keeps KV as: which types can be moved, and with which scales fp8 is stored."""

from __future__ import annotations

from typing import Any

import torch

from semblend_core.kv import Scales

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
"""With one scale for the K of a layer and one for its V. SGLang keeps these as bytes."""
STORES_WITH_SCALES = {"triton": True, "fa3": True, "torch_native": False}
"""Whether an attention backend divides by a layer's scales when it stores; if not, it stores what was computed.

Read in ``forward_extend`` of SGLang 0.5.17 to 0.5.23. Others were not read for it."""


def why_not_stored_so(engine_pool: Any) -> str | None:
    """Why KV as this pool stores it cannot be moved; None where it can."""
    dtype, stored = engine_pool.dtype, engine_pool.store_dtype
    if getattr(engine_pool, "is_quantized_kv_cache", False):
        name = getattr(getattr(engine_pool, "quant_method", None), "name", "unknown")
        return (
            f"a KV pool with a quantisation of its own ({name}) is not supported: its scales would have to be made anew"
        )
    if dtype not in FP8:
        return None if stored == dtype else f"a KV pool that stores {dtype} as {stored} is not supported yet"
    if stored.itemsize != 1:
        return f"a KV pool that stores {dtype} as {stored} is not supported"
    if type(engine_pool).__name__ == "MLATokenToKVPool":
        return "latents (MLA) in fp8 are not supported yet"
    return None


def is_fp8(engine_pool: Any) -> bool:
    return engine_pool.dtype in FP8


def why_scales_unsupported(ctx: Any, engine_pool: Any) -> str | None:
    if not is_fp8(engine_pool):
        return None
    backend = _prefill_attention(ctx)
    if backend not in STORES_WITH_SCALES:
        known = ", ".join(STORES_WITH_SCALES)
        return f"fp8 with prefill attention by {backend} is not supported yet: choose one of {known}"
    tensors = (getattr(layer, name, None) for layer in attention_layers(ctx) for name in ("k_scale", "v_scale"))
    several = any(isinstance(scale, torch.Tensor) and scale.numel() > 1 for scale in tensors)
    return "fp8 with a scale for each head is not supported yet" if several else None


def scales_of(ctx: Any, engine_pool: Any) -> Scales | None:
    """In the order of the layers; None where they are 1, or KV is not fp8."""
    if not is_fp8(engine_pool) or not STORES_WITH_SCALES.get(_prefill_attention(ctx), False):
        return None
    by_layer = {int(layer.layer_id): layer for layer in attention_layers(ctx)}
    layers = [by_layer.get(number) for number in range(len(engine_pool.k_buffer))]
    found = Scales(*(tuple(_scale(layer, part) for layer in layers) for part in "kv"))
    return None if found.are_one else found


def identity_of_scales(ctx: Any, engine_pool: Any) -> tuple[tuple[str, str], ...]:
    """What tells KV of these scales from others'; nothing where KV has none."""
    return (("kv_scales", str(scales_of(ctx, engine_pool) or 1)),) if is_fp8(engine_pool) else ()


def _prefill_attention(ctx: Any) -> str:
    return str(getattr(ctx.tp_worker.model_runner, "prefill_attention_backend_str", None))


def attention_layers(ctx: Any) -> list[Any]:
    """With ``--model-impl transformers`` SGLang hides them."""
    model = getattr(ctx.tp_worker.model_runner, "model", None)
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    return [module for module in modules if type(module).__name__ == "RadixAttention"]


def _scale(layer: Any, part: str) -> float:
    scale = getattr(layer, f"{part}_scale", None)
    return 1.0 if scale is None else float(scale)
