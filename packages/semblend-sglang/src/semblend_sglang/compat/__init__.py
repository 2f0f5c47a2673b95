"""All that knows SGLang: its versions, its prefix caches, the calls that are hooked, and what is not supported.

There is one module per generation of SGLang's prefix cache. Each translates that cache's calls to those of
``scheduler``.
"""

from __future__ import annotations

from typing import Any


def cache_class() -> type[Any]:
    """The cache for the SGLang that is installed."""
    from semblend_sglang.compat.generations import is_unified, takes_checkpoints

    if takes_checkpoints():
        from semblend_sglang.compat.unified import SemBlendUnifiedCache

        return SemBlendUnifiedCache
    if is_unified():
        from semblend_sglang.compat.early_unified import SemBlendEarlyUnifiedCache

        return SemBlendEarlyUnifiedCache
    from semblend_sglang.compat.radix import SemBlendRadixCache

    return SemBlendRadixCache


def stock_cache(ctx: Any) -> Any:
    """What SGLang would have made without us."""
    from sglang.srt.mem_cache.registry import default_radix_cache_factory

    return default_radix_cache_factory(ctx)
