"""A prompt as a cache sees it: blocks with a key, a size and a kind. Compact, since real traces hold millions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class CacheRequest:
    """One request. Block ``i`` is ``keys[i]``, of ``tokens[i]`` tokens and ``kinds[i]``."""

    request_id: str
    at_s: float
    """When it came, in seconds since the trace began; never smaller than that of the request before."""
    keys: tuple[int, ...]
    """Equal keys are equal content, of one tenant and one model."""
    tokens: tuple[int, ...]
    kinds: tuple[str, ...]
    session_id: str = ""
    tenant_id: str = ""
    observed_ttft_ms: float | None = None
    observed_prefill_tokens: int | None = None
    observed_prefix_hit_tokens: int | None = None
    total_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.total_tokens = sum(self.tokens)


def key_of(content_hash: str | int, tenant_id: str = "", model_name: str = "") -> int:
    """Nothing is shared between tenants or models, so both are a part of the key."""
    digest = hashlib.blake2b(
        f"{tenant_id}\0{model_name}\0{content_hash}".encode("utf-8", "surrogatepass"), digest_size=8
    )
    return int.from_bytes(digest.digest(), "big", signed=True)


def chained(keys: Sequence[int]) -> list[int]:
    """Keys that stand for a block and all blocks before it: what a prefix cache knows a block by."""
    chain, result = 0, []
    for key in keys:
        # Hashes of tuples of integers are the same in every process.
        chain = hash((chain, key))
        result.append(chain)
    return result
