"""SGLang's KV pool as core sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semblend_core.kv import PagedKv, Rotation, Scales
from semblend_core.serving.tree import SlotPool


def slot_pool_of(
    engine_pool: Any, rotation: Rotation | Sequence[Rotation], forward_stream: Any = None, scales: Scales | None = None
) -> SlotPool:
    """Views of the engine's buffers, in the order of the layers; MLA has one buffer per layer and no values.

    ``rotation``: of all layers, or of each. ``scales``: of fp8, which SGLang keeps as bytes; None where they are 1.
    """
    latent = getattr(engine_pool, "kv_buffer", None)
    if latent is not None and not hasattr(engine_pool, "k_buffer"):
        views = PagedKv.from_slots([layer if layer.dim() == 3 else layer.unsqueeze(1) for layer in latent])
    else:
        views = PagedKv.from_slots(
            *(
                [layer.view(engine_pool.dtype) for layer in part]
                for part in (engine_pool.k_buffer, engine_pool.v_buffer)
            )
        )
    if scales is not None:
        views = views.with_scales(scales.keys, scales.values)
    return SlotPool(views, rotation, forward_stream)
