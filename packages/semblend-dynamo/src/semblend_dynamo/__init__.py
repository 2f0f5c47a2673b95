"""SemBlend's place for routing. Today it holds ``semblend_dynamo.evidence``; the router comes next."""

from __future__ import annotations

import semblend_core

if not hasattr(semblend_core, "SemanticLookupProvider"):
    raise ImportError(
        f"{semblend_core.__file__} is not semblend-core's: the public package `semblend` ships that module too. "
        "Run `pip uninstall semblend`, then `pip install --force-reinstall --no-deps semblend-core`"
    )
