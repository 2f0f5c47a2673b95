"""SGLang 0.5.19 to 0.5.21: ``UnifiedRadixCache``, in Python or Rust, which is given the KV of whole requests."""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache import registry
from sglang.srt.mem_cache.base_prefix_cache import MatchResult
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from semblend_core.serving.tree import InPlace
from semblend_sglang.compat.by_request import SemBlendByRequest
from semblend_sglang.compat.over_unified import SemBlendOverUnified


class SemBlendEarlyUnifiedCache(SemBlendOverUnified, SemBlendByRequest, UnifiedRadixCache):  # type: ignore[misc]
    @classmethod
    def build(cls, ctx: Any) -> SemBlendEarlyUnifiedCache:
        create = getattr(registry, "create_unified_radix_cache", None)
        if create is not None:
            cache: SemBlendEarlyUnifiedCache = create(ctx, cache_class=cls)
            return cache
        # Engines that would need anything else besides are refused.
        ctx.params.tree_components = (ComponentType.FULL,)
        return cls(ctx.params)

    # --- SGLang's calls ----------------------------------------------------------------------------------------------

    def insert_req(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        """0.5.21 says so of a request that has ended. SGLang frees what no tree owns, and then says ``on_release``."""
        if self._takes_end_of(req, up_to):
            super().insert_req(req, up_to=up_to, **kwargs)

    def on_release(self, req: Any, *, inserted: bool) -> None:
        super().on_release(req, inserted=inserted)
        for part in self._parts():
            part.released(req)

    # --- ExactTree ---------------------------------------------------------------------------------------------------

    def hold(self, node: Any) -> Any:
        return node, self.inc_lock_ref(node).to_dec_params()

    def let_go(self, held: Any) -> None:
        self.dec_lock_ref(*held)

    # --- Translations ------------------------------------------------------------------------------------------------

    @staticmethod
    def _kv(req: Any) -> Any:
        return req.kv

    def _with_in_place(self, exact: MatchResult, in_place: InPlace) -> MatchResult:
        return super()._with_in_place(exact, in_place)._replace(cache_protected_len=in_place.end)

    def _insert_exact(self, req: Any, up_to: int) -> None:
        """As if no more of the request had been computed: SGLang then sees to its row and to its lock."""
        computed, prefix = req.extend_range, req.prefix_indices
        req.set_extend_range(min(computed.start, up_to), up_to)
        try:
            UnifiedRadixCache.cache_unfinished_req(self, req, chunked=True)
        finally:
            req.extend_range, req.prefix_indices = computed, prefix
        assert self._owned_by_trees(req) == up_to, (req.rid, self._owned_by_trees(req), up_to)
