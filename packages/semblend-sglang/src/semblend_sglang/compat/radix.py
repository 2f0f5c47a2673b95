"""SGLang 0.5.17: ``RadixCache`` with ``cache_(un)finished_req``, ``device_indices`` and ``prefix_indices``."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import (
    EvictParams,
    EvictResult,
    InitLoadBackParams,
    InsertParams,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

from semblend_core.serving.tree import InPlace, TreeMatch
from semblend_sglang.compat.cache import SemBlendCache
from semblend_sglang.scheduler.requests import TreeKey


class SemBlendRadixCache(SemBlendCache, RadixCache):  # type: ignore[misc]
    SWITCH_STOPS_PIECES = True

    @classmethod
    def build(cls, ctx: Any) -> SemBlendRadixCache:
        return cls(ctx.params)

    # --- SGLang's calls ----------------------------------------------------------------------------------------------

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        exact = super().match_prefix(params)
        req = params.req
        if req is None or self.disable or req.req_pool_idx is not None:
            return exact
        return self._longer(self._asked(req, params.key, len(exact.device_indices)), exact)

    def init_load_back(self, params: InitLoadBackParams) -> Any:
        req, side = params.req, self.semblend
        life = side.claimed(req) if side is not None and req is not None else None
        if side is None or life is None:
            return super().init_load_back(params)
        slots = side.admit(life)
        if slots is None:
            req.host_hit_length = 0
            slots = req.prefix_indices.new_empty(0)
        return slots.to(torch.int64), req.last_node

    def cache_unfinished_req(self, req: Any, chunked: bool = False) -> None:
        if self._is_approximate(req):
            self._keep_approximate(req, req.extend_range.end)
            # The next piece has to know how far this one came.
            req.prefix_indices = self._row(req)[: req.extend_range.end].to(torch.int64, copy=True)
            return
        super().cache_unfinished_req(req, chunked=chunked)
        if req.extend_range.end >= len(req.origin_input_ids):
            self._prompt_cached(req, req.req_pool_idx)

    def cache_finished_req(self, req: Any, is_insert: bool = True, *, kv_len_to_handle: int) -> None:
        exact = is_insert and not self._is_approximate(req)
        if is_insert and not exact and not self.disable_finished_insert:
            self._keep_approximate(req, kv_len_to_handle)
        if exact and not self.disable_finished_insert and kv_len_to_handle >= len(req.origin_input_ids):
            self._prompt_cached(req, req.req_pool_idx)
        super().cache_finished_req(req, is_insert=exact, kv_len_to_handle=kv_len_to_handle)
        for part in self._parts():
            part.released(req)

    def evict(self, params: EvictParams) -> EvictResult:
        return self._evict_both(params, super().evict)

    def reset(self) -> None:
        super().reset()
        if self.semblend is not None:
            self.semblend.new_weights.tree_emptied()

    # --- The hooks' calls --------------------------------------------------------------------------------------------

    def semblend_admitted(self, req: Any, adder: Any) -> None:
        super().semblend_admitted(req, adder)
        load = self.semblend.landing.of(req) if self.semblend is not None else None
        if load is not None:
            # SGLang takes what was loaded for the tree's own; it is the request's, and is freed with it.
            req.cache_protected_len = load.claim.start

    # --- ExactTree ---------------------------------------------------------------------------------------------------

    def find(self, tokens: Any, key: TreeKey) -> TreeMatch:
        length, found = self._look(tokens, key)
        return TreeMatch(length, found.last_device_node, lambda: found.device_indices)

    def hold(self, node: Any) -> Any:
        self.inc_lock_ref(node)
        return node

    def let_go(self, held: Any) -> None:
        self.dec_lock_ref(held)

    # --- Translations ------------------------------------------------------------------------------------------------

    def _look(self, tokens: Any, key: TreeKey) -> tuple[int, MatchResult]:
        found = super().match_prefix(MatchPrefixParams(key=RadixKey(tokens, key.extra_key)))
        return len(found.device_indices), found

    def _tree_key(self, req: Any) -> TreeKey:
        return TreeKey(req.extra_key, lora_id=req.lora_id)

    def _with_in_place(self, exact: MatchResult, in_place: InPlace) -> MatchResult:
        return exact._replace(device_indices=torch.cat([exact.device_indices, in_place.slots]))

    def _insert_exact(self, req: Any, up_to: int) -> None:
        """As SGLang does with a whole request: what the tree had already is freed, and the row shows the tree's."""
        row, owned = self._row(req), self._owned_by_trees(req)
        key = RadixKey(self._tokens(req, up_to), req.extra_key)
        slots = row[:up_to].to(torch.int64, copy=True)
        inserted = self.insert(InsertParams(key=key, value=slots, priority=getattr(req, "priority", 0) or 0))
        self.token_to_kv_pool_allocator.free_segment(slots[owned : inserted.prefix_len], start_pos=owned)
        found = super().match_prefix(MatchPrefixParams(key=key))
        assert len(found.device_indices) == up_to, (req.rid, len(found.device_indices), up_to)
        row[owned:up_to] = found.device_indices[owned:].to(row.dtype)
        self.dec_lock_ref(req.last_node)
        self.inc_lock_ref(found.last_device_node)
        req.last_node = found.last_device_node
        self._set_owned_by_trees(req, up_to)

    def _prefix_len(self, req: Any) -> int:
        return len(req.prefix_indices)

    def _owned_by_trees(self, req: Any) -> int:
        return int(req.cache_protected_len)

    def _set_owned_by_trees(self, req: Any, tokens: int) -> None:
        req.cache_protected_len = tokens

    def _row(self, req: Any) -> torch.Tensor:
        row: torch.Tensor = self.req_to_token_pool.req_to_token[req.req_pool_idx]
        return row

    def _tokens(self, req: Any, up_to: int) -> Any:
        return (req.origin_input_ids + req.output_ids)[:up_to]
