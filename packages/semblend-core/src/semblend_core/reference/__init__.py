"""What needs a real model (extra ``reference``): the default model, its tokenizer, and the reference engine.

The names of the engine bring torch and transformers with them when they are first used, the others do not.
"""

import importlib
from typing import TYPE_CHECKING, Any

from semblend_core.extras import require_extra
from semblend_core.reference.smollm2 import SMOLLM2, load_default_tokenizer

if TYPE_CHECKING:
    from semblend_core.reference.attention import Observation
    from semblend_core.reference.engine import ReferenceEngine
    from semblend_core.reference.loading import ModelNotLoadedError, default_model_folder
    from semblend_core.reference.prefill import Prefill
    from semblend_core.reference.reusing import prefill_reusing
    from semblend_core.reference.unsupported import UnsupportedModelError
    from semblend_core.reference.workspace import Workspace

_MODULE_OF = {
    "ModelNotLoadedError": "loading",
    "Observation": "attention",
    "Prefill": "prefill",
    "ReferenceEngine": "engine",
    "UnsupportedModelError": "unsupported",
    "Workspace": "workspace",
    "default_model_folder": "loading",
    "prefill_reusing": "reusing",
}

__all__ = [
    "SMOLLM2",
    "ModelNotLoadedError",
    "Observation",
    "Prefill",
    "ReferenceEngine",
    "UnsupportedModelError",
    "Workspace",
    "default_model_folder",
    "load_default_tokenizer",
    "prefill_reusing",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for needed in ("torch", "transformers"):
        require_extra(needed, distribution="semblend-core", extra="reference")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
