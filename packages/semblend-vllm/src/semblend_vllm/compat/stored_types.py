"""What vLLM keeps KV as: which types can be moved, and with which scales fp8 is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from semblend_core.kv import Scales
from semblend_vllm.compat.versions import UnsupportedVllmError, installed_version

PLAIN = ("auto", "float16", "bfloat16", "float32")
FP8 = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
"""With one scale for the K of a layer and one for its V. vLLM keeps these as bytes."""
STORES_E5M2 = ("FLASHINFER", "CPU_ATTN")
"""Attention backends that store what they are asked for: Triton's writes e4m3 under the name of fp8_e5m2."""


def is_fp8(vllm_config: Any) -> bool:
    return str(vllm_config.cache_config.cache_dtype) in FP8


def why_not_stored_so(vllm_config: Any) -> str | None:
    """Why KV of the type that vLLM is asked for cannot be moved; None where it can."""
    cache, model = vllm_config.cache_config, vllm_config.model_config
    asked = str(cache.cache_dtype)
    if asked in PLAIN:
        return None
    if asked not in FP8:
        return (
            f"a KV cache of type {asked} is not supported, only fp8, fp8_e4m3 and fp8_e5m2: its numbers are packed, or "
            "have scales of their own that would have to be made anew"
        )
    reasons = {
        "latents (MLA) in fp8 are not supported yet": bool(getattr(model, "use_mla", False)),
        # They come with the first forward, and what was proved before it would be of others.
        "scales that vLLM calculates (--calculate-kv-scales) are not supported: they change while it runs": bool(
            getattr(cache, "calculate_kv_scales", False)
        ),
        "layers that are left out of fp8 (--kv-cache-dtype-skip-layers) are not supported yet": bool(
            getattr(cache, "kv_cache_dtype_skip_layers", None)
        ),
        "sleep mode with an fp8 KV cache is not supported: vLLM wakes up with other scales": bool(
            getattr(model, "enable_sleep_mode", False)
        ),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def identity_of_scales(vllm_config: Any) -> tuple[tuple[str, str], ...]:
    """What tells KV of these scales from others'; nothing where there are none.

    Without ``--calculate-kv-scales`` they are the checkpoint's, which the namespace names, as this vLLM reads them.
    """
    return (("kv_scales", f"of the weights, by vLLM {installed_version()}"),) if is_fp8(vllm_config) else ()


def as_stored(vllm_config: Any, layers: list[torch.Tensor], names: Sequence[str]) -> list[torch.Tensor]:
    """The same memory in the type of its numbers. ``names``: of the layers, as vLLM has them."""
    if layers[0].dtype in (torch.float16, torch.bfloat16, torch.float32):
        return layers
    asked = str(vllm_config.cache_config.cache_dtype)
    if asked not in FP8 or layers[0].element_size() != 1:
        raise UnsupportedVllmError(f"a KV cache of {layers[0].dtype} ({asked}) is not supported")
    wanted = FP8[asked]
    from vllm.platforms import current_platform

    if layers[0].device.type != "cpu" and current_platform.fp8_dtype() != torch.float8_e4m3fn:
        raise UnsupportedVllmError(f"this device's fp8 ({current_platform.fp8_dtype()}) is not supported yet")
    if wanted == torch.float8_e5m2:
        backend = _backend_of(vllm_config, names[0])
        if backend not in STORES_E5M2:
            raise UnsupportedVllmError(f"{backend} stores fp8_e5m2 as another type: use --kv-cache-dtype fp8")
    return [layer.view(wanted) for layer in layers]


def scales_of(vllm_config: Any, names: Sequence[str]) -> Scales | None:
    """Of the layers with these names; None where they are 1, or KV is not fp8."""
    if not is_fp8(vllm_config):
        return None
    context = vllm_config.compilation_config.static_forward_context
    found = Scales(*(tuple(_scale(context.get(name), part) for name in names) for part in "kv"))
    return None if found.are_one else found


def _scale(layer: Any, part: str) -> float:
    """vLLM has it as a tensor for kernels and as a number, which may stay at 1 where the tensor has one per head."""
    tensor = getattr(layer, f"_{part}_scale", None)
    if tensor is None:
        return 1.0
    if tensor.numel() != 1:
        raise UnsupportedVllmError("fp8 with a scale for each head is not supported yet")
    return float(tensor.item())


def _backend_of(vllm_config: Any, name: str) -> str:
    backend = getattr(vllm_config.compilation_config.static_forward_context.get(name), "attn_backend", None)
    return "this attention backend" if backend is None else str(backend.get_name())
