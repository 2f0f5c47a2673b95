"""What every release of ``UnifiedRadixCache`` is asked alike: to make room, what it holds, and who has left."""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import EvictParams, EvictResult

from semblend_sglang.compat.cache import SemBlendCache


class SemBlendOverUnified(SemBlendCache):
    def finish(self, request: Any, outcome: Any) -> None:
        """From 0.5.20 on. A request that never ran, as one that waited too long, ends only so."""
        super().finish(request, outcome)  # type: ignore[misc]
        if outcome.name == "ABORT":
            for part in self._parts():
                part.leave_queue(request.rid)

    def _evict(self, params: EvictParams, *args: Any, **kwargs: Any) -> EvictResult:
        evict = super()._evict  # type: ignore[misc]
        return self._evict_both(params, lambda left: evict(left, *args, **kwargs))

    def full_evictable_size(self) -> int:
        return int(super().full_evictable_size()) + self._evictable_approximate()  # type: ignore[misc]

    def full_protected_size(self) -> int:
        return int(super().full_protected_size()) + self._held_approximate()  # type: ignore[misc]
