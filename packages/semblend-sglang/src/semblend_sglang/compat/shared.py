"""What both generations of SGLang's cache have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from semblend_sglang.aliases import AliasPath
from semblend_sglang.side import Side


class SemBlendCache:
    """Mixed into SGLang's own cache class, in front of it."""

    semblend: Side | None = None
    """None until the engine is complete, and for good where it is not supported: then this is SGLang's own cache."""
    semblend_aliases: AliasPath | None = None
    """Instead of it, for a provider that has only other tokens to offer."""
    token_to_kv_pool_allocator: Any
    req_to_token_pool: Any

    def allocate(self, tokens: int) -> torch.Tensor | None:
        """Slots that nobody else has, whole pages, evicting what is not held; None where there is no room."""
        allocator = self.token_to_kv_pool_allocator
        short = tokens - allocator.available_size()
        if short > 0:
            self.evict(EvictParams(num_tokens=short))  # type: ignore[attr-defined]
        if allocator.available_size() < tokens:
            return None
        slots: torch.Tensor | None = allocator.alloc(tokens)
        return slots

    def free(self, slots: torch.Tensor) -> None:
        self.token_to_kv_pool_allocator.free(slots)

    def semblend_may_load(self) -> bool:
        """Whether every slot of the tree holds its KV for whatever is queued from now on."""
        return True

    def _parts(self) -> Iterator[Side | AliasPath]:
        return (part for part in (self.semblend, self.semblend_aliases) if part is not None)

    def _is_approximate(self, req: Any) -> bool:
        known = (part.of(req) for part in self._parts())
        return any(followed is not None and followed.approximate for followed in known)

    def _row(self, pool_index: int, tokens: int) -> torch.Tensor:
        """The slots of a request's first tokens."""
        row: torch.Tensor = self.req_to_token_pool.req_to_token[pool_index, :tokens]
        return row.to(torch.int64)
