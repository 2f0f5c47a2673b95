"""``patch_radix_cache()``: the call that earlier integrations made. The plugin has taken its place."""

from __future__ import annotations

import warnings

from semblend_sglang.compat.versions import installed_version, why_refused

PATCHABLE = ("0.5.17",)
"""Versions whose default cache is still the class that such a patch would change."""
REPLACEMENT = "start SGLang with --radix-cache-backend semblend, or with the command semblend-sglang"


def patch_radix_cache() -> bool:
    """Kept so that old start scripts go on running. Patches nothing; returns whether the plugin can act here.

    The patch it stood for replaced ``RadixCache.match_prefix``. Since 0.5.19 SGLang's default cache is another class
    with a core of its own, where that changes nothing at all; before, the plugin does the same and more.
    """
    version = installed_version()
    refused = why_refused(version)
    if refused is not None:
        says = f"patch_radix_cache() does nothing: {refused}"
    elif version in PATCHABLE:
        says = f"patch_radix_cache() is no longer needed in SGLang {version} and does nothing: {REPLACEMENT}"
    else:
        says = f"patch_radix_cache() is inert in SGLang {version}, whose cache is not RadixCache: {REPLACEMENT}"
    warnings.warn(says, RuntimeWarning, stacklevel=2)
    return refused is None
