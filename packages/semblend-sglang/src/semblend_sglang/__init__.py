"""SemBlend for SGLang: reuse of any earlier prompt's KV, at any position, in one forward pass.

SGLang finds the plugin by its entry point; ``--radix-cache-backend semblend`` switches it on. Importing this package
alone does not import SGLang.
"""

from __future__ import annotations

import semblend_core

if not hasattr(semblend_core, "SemanticLookupProvider"):
    raise ImportError(
        f"{semblend_core.__file__} is not semblend-core's: the public package `semblend` ships that module too. "
        "Run `pip uninstall semblend`, then `pip install --force-reinstall --no-deps semblend-core`"
    )

from semblend_sglang.legacy import patch_radix_cache

__all__ = ["patch_radix_cache"]
