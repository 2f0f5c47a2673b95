"""SemBlend for vLLM: reuse of any earlier prompt's KV, at any position, in one forward pass.

``vllm serve`` imports :class:`SemBlendConnectorV1` and the scheduler from here by name; importing this package alone
does not import vLLM.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semblend_vllm.connector import SemBlendConnectorV1
    from semblend_vllm.scheduler.batches import SemBlendScheduler

__all__ = ["SemBlendConnectorV1", "SemBlendScheduler"]

_HOMES = {
    "SemBlendConnectorV1": "semblend_vllm.connector",
    "SemBlendScheduler": "semblend_vllm.scheduler.batches",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
