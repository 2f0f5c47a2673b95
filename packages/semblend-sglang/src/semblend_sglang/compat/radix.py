"""SGLang 0.5.17: ``RadixCache`` with ``cache_(un)finished_req``, ``device_indices`` and ``prefix_indices``."""

from __future__ import annotations

from array import array
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams, MatchPrefixParams, MatchResult
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

from semblend_sglang.compat.shared import SemBlendCache
from semblend_sglang.requests import Asked, TreeKey
from semblend_sglang.support import why_not_for
from semblend_sglang.tree import TreeMatch


class SemBlendRadixCache(SemBlendCache, RadixCache):  # type: ignore[misc]
    @classmethod
    def build(cls, ctx: Any) -> SemBlendRadixCache:
        return cls(ctx.params)

    # --- SGLang's calls --------------------------------------------------------------------------------------------

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        exact = super().match_prefix(params)
        req = params.req
        if req is None or self.disable or (self.semblend is None and self.semblend_aliases is None):
            return exact
        if req.req_pool_idx is not None or req.output_ids:
            return exact  # It was retracted: what it had is computed again.
        asked = self._asked(req, params.key, len(exact.device_indices))
        if self.semblend_aliases is not None:
            # Its mark alone keeps it out of the tree: SGLang's switch would stop a prompt in pieces at the first one.
            found = self.semblend_aliases.match(asked, lambda tokens: self._look(tokens, asked.key))
            return exact if found is None else found
        assert self.semblend is not None
        claim = self.semblend.match(asked)
        return exact if claim is None else exact._replace(host_hit_length=claim.length)

    def init_load_back(self, params: InitLoadBackParams) -> Any:
        req, side = params.req, self.semblend
        followed = side.of(req) if side is not None and req is not None else None
        if side is None or followed is None or followed.claim is None:
            return super().init_load_back(params)
        slots = side.admit(req.rid)
        if slots is None:
            req.host_hit_length = 0
            slots = req.prefix_indices.new_empty(0)
        return slots.to(torch.int64), req.last_node

    def cache_unfinished_req(self, req: Any, chunked: bool = False) -> None:
        if self._is_approximate(req):
            # Nothing enters the tree; the next piece only has to know how far this one came.
            row = self.req_to_token_pool.req_to_token[req.req_pool_idx, : req.extend_range.end]
            req.prefix_indices = row.to(torch.int64, copy=True)
            return
        super().cache_unfinished_req(req, chunked=chunked)
        if req.extend_range.end >= len(req.origin_input_ids):
            self._prompt_cached(req)

    def cache_finished_req(self, req: Any, is_insert: bool = True, *, kv_len_to_handle: int) -> None:
        exact = is_insert and not self._is_approximate(req)
        if exact and not self.disable_finished_insert and kv_len_to_handle >= len(req.origin_input_ids):
            self._prompt_cached(req)
        super().cache_finished_req(req, is_insert=exact, kv_len_to_handle=kv_len_to_handle)
        for part in self._parts():
            part.released(req)

    def reset(self) -> None:
        super().reset()
        if self.semblend is not None:
            self.semblend.reset()

    # --- The hooks' calls ------------------------------------------------------------------------------------------

    def semblend_admitted(self, req: Any, adder: Any) -> None:
        side = self.semblend
        load = side.loads.get(req.rid) if side is not None else None
        if side is None or load is None:
            return
        # SGLang takes what was loaded for the tree's own; it is the request's, and is freed with it.
        req.cache_protected_len = load.claim.start
        req.already_computed = load.claim.row_tokens
        adder.log_hit_tokens -= load.claim.row_tokens
        adder.log_input_tokens += load.claim.row_tokens
        self.semblend_continued(req, finished=adder.new_chunked_req is not req)

    def semblend_continued(self, req: Any, finished: bool) -> None:
        """SGLang does not advance a prompt in pieces while this switch is set, so it is set with the last piece."""
        if finished and self.semblend is not None:
            self.semblend.forbid_insert(req.rid)

    def semblend_forget_private(self, req: Any) -> None:
        """The next round's match sets the request's prefix anew."""

    # --- ExactTree -------------------------------------------------------------------------------------------------

    def find(self, tokens: Any, key: TreeKey) -> TreeMatch:
        length, found = self._look(tokens, key)
        return TreeMatch(length, found.last_device_node, lambda: found.device_indices)

    def hold(self, node: Any) -> Any:
        self.inc_lock_ref(node)
        return node

    def let_go(self, held: Any) -> None:
        self.dec_lock_ref(held)

    # --- Translations ----------------------------------------------------------------------------------------------

    def _prompt_cached(self, req: Any) -> None:
        asked = self._asked(req, None, 0)
        if self.semblend is not None:
            self.semblend.cached(asked, lambda: self._row(req.req_pool_idx, len(asked.prompt)))
        elif self.semblend_aliases is not None:
            self.semblend_aliases.cached(asked)

    def _look(self, tokens: Any, key: TreeKey) -> tuple[int, MatchResult]:
        found = super().match_prefix(MatchPrefixParams(key=self._key(tokens, key)))
        return len(found.device_indices), found

    @staticmethod
    def _key(tokens: Any, key: TreeKey) -> RadixKey:
        return RadixKey(tokens if isinstance(tokens, array) else array("q", tokens), key.extra_key)

    @staticmethod
    def _asked(req: Any, key: Any, exact_tokens: int) -> Asked:
        return Asked(req, req.rid, req.origin_input_ids, TreeKey(req.extra_key), exact_tokens, why_not_for(req, key))
