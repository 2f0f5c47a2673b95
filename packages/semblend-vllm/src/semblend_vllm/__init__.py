"""SemBlend for vLLM: reuse of any earlier prompt's KV, at any position, in one forward pass.

``vllm serve`` imports :class:`SemBlendConnectorV1` and the scheduler from here by name; importing this package alone
does not import vLLM.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import semblend_core

if TYPE_CHECKING:
    from semblend_vllm.connector import SemBlendConnectorV1
    from semblend_vllm.scheduler.batches import SemBlendScheduler

if not hasattr(semblend_core, "SemanticLookupProvider"):
    raise ImportError(
        f"{semblend_core.__file__} is not semblend-core's: the public package `semblend` ships that module too. "
        "Run `pip uninstall semblend`, then `pip install --force-reinstall --no-deps semblend-core`"
    )

__all__ = ["SemBlendConnectorV1", "SemBlendScheduler"]

_HOMES = {
    "SemBlendConnectorV1": "semblend_vllm.connector",
    "SemBlendScheduler": "semblend_vllm.scheduler.batches",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
