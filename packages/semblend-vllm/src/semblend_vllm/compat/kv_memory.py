"""vLLM's KV memory: how each kind of device keeps it, and whether it can be corrected between layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from semblend_core.kv import PagedKv, Rotation, Scales
from semblend_core.serving.worker import KvMemory, PagedMemory, memory_by_rotation
from semblend_vllm.compat.cpu_memory import PackedCpuMemory
from semblend_vllm.compat.stored_types import as_stored, is_fp8, scales_of
from semblend_vllm.compat.versions import UnsupportedVllmError


def kv_memory(vllm_config: Any, kv_caches: dict[str, torch.Tensor], rotations: Sequence[Rotation]) -> KvMemory:
    """The registered KV tensors, in the order of the layers. ``rotations``: of each."""
    names = in_order(kv_caches)
    layers = as_stored(vllm_config, [kv_caches[name] for name in names], names)
    scales = scales_of(vllm_config, names)
    numbers = {id(layer): number for number, layer in enumerate(layers)}

    def memory_of(own: list[torch.Tensor], rotation: Rotation) -> KvMemory:
        theirs = None if scales is None else scales.of([numbers[id(layer)] for layer in own])
        return _memory_of(vllm_config, own, rotation, theirs)

    memory, block_size = memory_by_rotation(layers, rotations, memory_of), vllm_config.cache_config.block_size
    if memory.block_size != block_size:  # Ids of blocks would be taken for ids of their parts.
        raise UnsupportedVllmError(
            f"the attention backend cuts vLLM's blocks of {block_size} tokens into blocks of {memory.block_size}: add "
            f"--block-size {memory.block_size}"
        )
    return memory


def _memory_of(vllm_config: Any, layers: list[torch.Tensor], rotation: Rotation, scales: Scales | None) -> KvMemory:
    first, head_size = layers[0], vllm_config.model_config.get_head_size()
    if holds_latents(vllm_config):
        return PagedMemory(PagedKv.from_latent([_without_heads(layer) for layer in layers]), rotation)
    if first.device.type == "cpu":
        return PackedCpuMemory(layers, _cpu_writer(vllm_config, first), rotation, scales)
    if first.dim() == 4 and first.shape[3] == 2 * head_size:
        views = PagedKv.from_joined(layers, head_size)
    elif first.dim() == 5 and 2 in first.shape[:2]:
        views = PagedKv.from_stacked(layers, 0 if first.shape[0] == 2 else 1)
    else:
        raise UnsupportedVllmError(f"the attention backend keeps KV as {tuple(first.shape)}, which is not known")
    return PagedMemory(views if scales is None else views.with_scales(scales.keys, scales.values), rotation)


def holds_latents(vllm_config: Any) -> bool:
    """Whether attention is latent (MLA): the pool holds what keys and values are made of, as plain memory anywhere."""
    return bool(vllm_config.model_config.use_mla)


def _without_heads(layer: torch.Tensor) -> torch.Tensor:
    """[blocks, block_size, latent and rotated part]; some versions put an axis for the only head before the tokens."""
    return layer.squeeze(1) if layer.dim() == 4 and layer.shape[1] == 1 else layer


def why_no_correction(vllm_config: Any, names: Iterable[str], rotations: Sequence[Rotation]) -> str | None:
    """Why nothing can or should be done between a layer's KV update and its attention; None where it can.

    ``rotations``: by layer.
    """
    if len(set(rotations)) > 1:  # Measured with Gemma 3 270M: far worse than none.
        return "corrections of layers that turn keys differently make answers worse"
    context = vllm_config.compilation_config.static_forward_context
    latents = holds_latents(vllm_config)
    for name in names:
        layer = context.get(name)
        backend: Any = getattr(layer, "attn_backend", None)
        if latents:  # They are always stored first. Where vLLM calls the two directly, nobody is called between them.
            if getattr(layer, "use_direct_call", False):
                return "vLLM stores latents and attends to them without a call between"
        elif getattr(layer, "sliding_window", None) is not None:  # Gemma 3 270M: far worse than no correction.
            return "in layers that attend to a window corrections make answers worse"
        elif getattr(backend, "forward_includes_kv_cache_update", False):
            return f"{backend.__name__} updates KV and attends to it in one operation"
    return None


def why_no_steps_between_layers(vllm_config: Any) -> str | None:
    """The same, as far as the configuration tells: a graph of the whole forward has no place for Python."""
    mode = vllm_config.compilation_config.cudagraph_mode
    if mode is None or vllm_config.model_config.enforce_eager:
        return None
    if mode.mixed_mode().name == "FULL":
        return "cudagraph_mode=FULL also captures prefills; use FULL_AND_PIECEWISE, which is vLLM's default"
    return None


def tensor_parallel_rank() -> int:
    from vllm.distributed import get_tensor_model_parallel_rank

    return int(get_tensor_model_parallel_rank())


def _cpu_writer(vllm_config: Any, cache: torch.Tensor) -> Any:
    from vllm import _custom_ops as operators
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    _, _, block_size, both = cache.shape
    isa = _get_attn_isa(vllm_config.model_config.dtype, block_size, both // 2, vllm_config.cache_config.cache_dtype)

    def write(keys: Any, values: Any, key_cache: Any, value_cache: Any, slots: Any) -> None:
        operators.cpu_attn_reshape_and_cache(keys, values, key_cache, value_cache, slots, isa)

    def write_fp8(keys: Any, values: Any, key_cache: Any, value_cache: Any, slots: Any) -> None:
        """vLLM's operator takes what was computed, and rounds it itself."""
        wide = (part.to(vllm_config.model_config.dtype) for part in (keys, values))
        caches = (part.view(torch.uint8) for part in (key_cache, value_cache))
        asked = vllm_config.cache_config.cache_dtype
        operators.cpu_attn_reshape_and_cache(*wide, *caches, slots, isa, kv_cache_dtype=asked)

    return write_fp8 if is_fp8(vllm_config) else write


def probe_layers(vllm_config: Any, kv_cache_config: Any) -> int | None:
    """How many have KV of their own; None where queries do not meet it as it is, but what attention makes of it."""
    if holds_latents(vllm_config):
        return None
    return sum(len(group.layer_names) for group in kv_cache_config.kv_cache_groups)


def in_order(kv_caches: dict[str, torch.Tensor]) -> list[str]:
    """Layers' names, the first layer first."""
    return sorted(kv_caches, key=_layer_number)


def _layer_number(name: str) -> list[int]:
    return [int(part) for part in name.split(".") if part.isdigit()]
