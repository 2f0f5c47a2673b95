"""SGLang 0.5.17 and 0.5.18: ``RadixCache``, whose requests hold their own row."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, EvictResult, InsertParams
from sglang.srt.mem_cache.radix_cache import RadixCache

from semblend_sglang.compat.by_request import SemBlendByRequest


class SemBlendRadixCache(SemBlendByRequest, RadixCache):  # type: ignore[misc]
    @classmethod
    def build(cls, ctx: Any) -> SemBlendRadixCache:
        return cls(ctx.params)

    def evict(self, params: EvictParams) -> EvictResult:
        return self._evict_both(params, super().evict)

    # --- ExactTree ---------------------------------------------------------------------------------------------------

    def hold(self, node: Any) -> Any:
        self.inc_lock_ref(node)
        return node

    def let_go(self, held: Any) -> None:
        self.dec_lock_ref(held)

    # --- Translations ------------------------------------------------------------------------------------------------

    @staticmethod
    def _kv(req: Any) -> Any:
        return req

    def _insert_exact(self, req: Any, up_to: int) -> None:
        """As SGLang does with a whole request: what the tree had already is freed, and the row shows the tree's."""
        row, owned, key = self._row(req), self._owned_by_trees(req), self._tree_key(req)
        tokens = self._tokens(req, up_to)
        slots = row[:up_to].to(torch.int64, copy=True)
        inserted = self.insert(
            InsertParams(key=self._key(tokens, key), value=slots, priority=getattr(req, "priority", 0) or 0)
        )
        self.token_to_kv_pool_allocator.free_segment(slots[owned : inserted.prefix_len], start_pos=owned)
        length, found = self._look(tokens, key)
        assert length == up_to, (req.rid, length, up_to)
        row[owned:up_to] = found.device_indices[owned:].to(row.dtype)
        self.dec_lock_ref(req.last_node)
        self.inc_lock_ref(found.last_device_node)
        req.last_node = found.last_device_node
        self._set_owned_by_trees(req, up_to)
