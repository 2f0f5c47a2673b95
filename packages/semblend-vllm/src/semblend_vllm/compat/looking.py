"""What vLLM's attention layers attend with: each layer's queries, between its KV update and its attention.

vLLM calls a layer's implementation in every step that no graph captured as a whole, as it calls the connector's
``wait_for_layer_load`` just before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch

Look = Callable[[int, torch.Tensor, torch.Tensor, float], None]
"""(layer, queries [rows, heads, dim] of the batch, slots that its KV was written to, scale)"""


def show_queries(vllm_config: Any, layers: Mapping[str, int], look: Look) -> None:
    """Let ``look`` see the queries of these layers, which are named as vLLM names them."""
    context = vllm_config.compilation_config.static_forward_context
    for name, number in layers.items():
        implementation = context[name].impl
        implementation.forward = _shown(implementation.forward, name, number, float(implementation.scale), look)


def _shown(forward: Callable[..., Any], name: str, layer: int, scale: float, look: Look) -> Callable[..., Any]:
    from vllm.forward_context import get_forward_context

    @wraps(forward)
    def shown(module: Any, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        slots = get_forward_context().slot_mapping
        if isinstance(slots, dict) and name in slots:  # Not where vLLM only tries what it can hold.
            stored_with = float(module._q_scale_float) if query.dtype.itemsize == 1 else 1.0  # Fp8 has a scale.
            look(layer, query, slots[name], scale * stored_with)
        return forward(module, query, *args, **kwargs)

    return shown
