"""Which generation of prefix cache the installed SGLang has, told by what it can do and not by its number."""

from __future__ import annotations

from typing import Any


def takes_checkpoints() -> bool:
    """Whether a cache is told how far to keep a request's KV. Before 0.5.22 it was given whole requests."""
    from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache

    return hasattr(BasePrefixCache, "checkpoint")


def is_unified() -> bool:
    """Whether ``UnifiedRadixCache`` is what SGLang itself would use. It had it before, for other models."""
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    return hasattr(UnifiedRadixCache, "_evict")


def why_too_old(ctx: Any) -> str | None:
    """What an engine is to do with the installed SGLang that SemBlend does with newer ones only; None: nothing."""
    asked = {
        "tensor parallelism": ctx.tp_size > 1,
        "the hierarchical cache": ctx.enable_hierarchical_cache,
    }
    wants = next((what for what, applies in asked.items() if applies), None)
    return None if wants is None or takes_checkpoints() else f"{wants} is supported from SGLang 0.5.22 on"
