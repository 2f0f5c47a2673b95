"""SGLang's KV pool as core sees it."""

from __future__ import annotations

from typing import Any

from semblend_core.kv import PagedKv, Rotation
from semblend_core.serving.tree import SlotPool


def slot_pool_of(engine_pool: Any, rotation: Rotation, forward_stream: Any = None) -> SlotPool:
    """Views of the engine's buffers, in the order of the layers; MLA has one buffer per layer and no values."""
    latent = getattr(engine_pool, "kv_buffer", None)
    if latent is not None and not hasattr(engine_pool, "k_buffer"):
        views = PagedKv.from_slots([layer if layer.dim() == 3 else layer.unsqueeze(1) for layer in latent])
    else:
        views = PagedKv.from_slots(engine_pool.k_buffer, engine_pool.v_buffer)
    return SlotPool(views, rotation, forward_stream)
