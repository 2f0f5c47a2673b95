"""TensorRT-LLM's one pool of pages as core's KV memory."""

from __future__ import annotations

import torch

from semblend_core.kv import PagedKv, Rotation
from semblend_core.serving.worker import PagedMemory
from semblend_trtllm.compat import UnsupportedTrtllmError
from semblend_trtllm.support import KvGeometry, check_shape


def views_of(pool: torch.Tensor, geometry: KvGeometry) -> PagedKv:
    """``pool``: [blocks, layers, 2, page], each page a block of tokens then heads (NHD) or heads then tokens (HND)."""
    check_shape(tuple(pool.shape), geometry)
    if pool.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise UnsupportedTrtllmError(f"a KV pool of {pool.dtype} is not supported yet")
    tokens, heads, dim = geometry.block_size, geometry.kv_heads, geometry.head_dim
    page = (tokens, heads, dim) if geometry.layout == "NHD" else (heads, tokens, dim)
    pages = pool.view(*pool.shape[:3], *page)
    if geometry.layout == "HND":
        pages = pages.transpose(3, 4)
    # [blocks, layers, 2, tokens, heads, dim]
    return PagedKv.from_stacked([pages[:, layer] for layer in range(geometry.layers)], kv_axis=1)


def memory_of(pool: torch.Tensor, geometry: KvGeometry, rotation: Rotation) -> PagedMemory:
    return PagedMemory(views_of(pool, geometry), rotation)
