"""Who may use whose KV, and what a client is told of it."""

from __future__ import annotations

from semblend_core.contract import Namespace
from semblend_core.settings import Settings

SHOWN_IN_BLOCKS_OF = 64
"""Tokens. As many in each engine, whatever its own blocks or pages hold."""


def may_share(settings: Settings, namespace: Namespace) -> bool:
    """Whether requests of this namespace give donors and take from them. Its requests share with each other only."""
    return namespace.is_salted or settings.sharing == "all"


def shown_as_cached(settings: Settings, reused_tokens: int) -> int:
    """How many of its reused tokens a client reads in ``cached_tokens``."""
    if settings.cached_tokens == "left_out":
        return 0
    return reused_tokens if settings.cached_tokens == "exact" else reused_tokens - reused_tokens % SHOWN_IN_BLOCKS_OF
