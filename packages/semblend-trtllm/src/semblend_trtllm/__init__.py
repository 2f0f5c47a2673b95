"""SemBlend for TensorRT-LLM: exact prefixes out of SemBlend's donor store, through the KV-cache connector.

TensorRT-LLM imports the two connector classes from here by name; importing this package alone does not import it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import semblend_core

if TYPE_CHECKING:
    from semblend_trtllm.connector import SemBlendConnectorScheduler, SemBlendConnectorWorker

if not hasattr(semblend_core, "SemanticLookupProvider"):
    raise ImportError(
        f"{semblend_core.__file__} is not semblend-core's: the public package `semblend` ships that module too. "
        "Run `pip uninstall semblend`, then `pip install --force-reinstall --no-deps semblend-core`"
    )

__all__ = ["SemBlendConnectorScheduler", "SemBlendConnectorWorker"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("semblend_trtllm.connector"), name)
