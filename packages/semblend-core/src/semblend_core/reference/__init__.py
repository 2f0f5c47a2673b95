"""What needs a real model (extra ``reference``): the default model, its tokenizer, and the reference engine.

The names of the engine bring torch and transformers with them when they are first used, the others do not.
"""

import importlib
from typing import TYPE_CHECKING, Any

from semblend_core.extras import require_extra
from semblend_core.reference.smollm2 import SMOLLM2, default_model_file, load_default_tokenizer

if TYPE_CHECKING:
    from semblend_core.reference.attention import Observation
    from semblend_core.reference.engine import ReferenceEngine, row_positions
    from semblend_core.reference.loading import (
        ModelNotLoadedError,
        default_model_folder,
        load_model,
        write_default_model,
    )
    from semblend_core.reference.prefill import Prefill
    from semblend_core.reference.probing import EngineProbe
    from semblend_core.reference.reusing import ReusingPrefill, prefill_reusing
    from semblend_core.reference.self_test_subject import ReferenceSubject
    from semblend_core.reference.unsupported import UnsupportedModelError
    from semblend_core.reference.workspace import KvGeometry, Workspace

_MODULE_OF = {
    "EngineProbe": "probing",
    "KvGeometry": "workspace",
    "ModelNotLoadedError": "loading",
    "Observation": "attention",
    "Prefill": "prefill",
    "ReferenceEngine": "engine",
    "ReferenceSubject": "self_test_subject",
    "ReusingPrefill": "reusing",
    "UnsupportedModelError": "unsupported",
    "Workspace": "workspace",
    "default_model_folder": "loading",
    "load_model": "loading",
    "prefill_reusing": "reusing",
    "row_positions": "engine",
    "write_default_model": "loading",
}

__all__ = [
    "SMOLLM2",
    "EngineProbe",
    "KvGeometry",
    "ModelNotLoadedError",
    "Observation",
    "Prefill",
    "ReferenceEngine",
    "ReferenceSubject",
    "ReusingPrefill",
    "UnsupportedModelError",
    "Workspace",
    "default_model_file",
    "default_model_folder",
    "load_default_tokenizer",
    "load_model",
    "prefill_reusing",
    "row_positions",
    "write_default_model",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for needed in ("torch", "transformers"):
        require_extra(needed, distribution="semblend-core", extra="reference")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
