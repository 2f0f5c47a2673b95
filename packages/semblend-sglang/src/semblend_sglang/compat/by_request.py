"""What SGLang's caches had in common up to 0.5.21: they are given the KV of whole requests, and answer with slots."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams, MatchPrefixParams, MatchResult
from sglang.srt.mem_cache.radix_cache import RadixKey

from semblend_core.serving.tree import InPlace, TreeMatch
from semblend_sglang.compat.cache import SemBlendCache
from semblend_sglang.scheduler.requests import TreeKey


class SemBlendByRequest(SemBlendCache):
    """``cache_(un)finished_req``, ``device_indices`` and ``prefix_indices``."""

    SWITCH_STOPS_PIECES = True

    # --- SGLang's calls ----------------------------------------------------------------------------------------------

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        exact = super().match_prefix(params)  # type: ignore[misc]
        req = params.req
        if req is None or self.disable or self._kv(req).req_pool_idx is not None:
            return exact
        return self._longer(self._asked(req, params.key, len(exact.device_indices)), exact)

    def init_load_back(self, params: InitLoadBackParams) -> Any:
        req, side = params.req, self.semblend
        life = side.claimed(req) if side is not None and req is not None else None
        if side is None or life is None:
            return super().init_load_back(params)  # type: ignore[misc]
        slots = side.admit(life)
        if slots is None:
            req.host_hit_length = 0
            slots = req.prefix_indices.new_empty(0)
        return slots.to(torch.int64), req.last_node

    def cache_unfinished_req(self, req: Any, chunked: bool = False, **kwargs: Any) -> None:
        if self._is_approximate(req):
            self._keep_approximate(req, req.extend_range.end)
            # The next piece has to know how far this one came.
            req.prefix_indices = self._row(req)[: req.extend_range.end].to(torch.int64, copy=True)
            return
        super().cache_unfinished_req(req, chunked=chunked, **kwargs)  # type: ignore[misc]
        if req.extend_range.end >= len(req.origin_input_ids):
            self._prompt_cached(req, self._kv(req).req_pool_idx)

    def cache_finished_req(self, req: Any, is_insert: bool = True, *, kv_len_to_handle: int, **kwargs: Any) -> None:
        exact = is_insert and self._takes_end_of(req, kv_len_to_handle)
        super().cache_finished_req(  # type: ignore[misc]
            req, is_insert=exact, kv_len_to_handle=kv_len_to_handle, **kwargs
        )
        for part in self._parts():
            part.released(req)

    def reset(self) -> None:
        super().reset()  # type: ignore[misc]
        if self.semblend is not None:
            self.semblend.new_weights.tree_emptied()

    # --- The hooks' calls --------------------------------------------------------------------------------------------

    def semblend_admitted(self, req: Any, adder: Any) -> None:
        super().semblend_admitted(req, adder)
        load = self.semblend.landing.of(req) if self.semblend is not None else None
        if load is not None:
            # SGLang takes what was loaded for the tree's own; it is the request's, and is freed with it.
            self._set_owned_by_trees(req, load.claim.start)

    # --- ExactTree ---------------------------------------------------------------------------------------------------

    def find(self, tokens: Any, key: TreeKey) -> TreeMatch:
        length, found = self._look(tokens, key)
        return TreeMatch(length, found.last_device_node, lambda: found.device_indices)

    # --- Translations ------------------------------------------------------------------------------------------------

    @staticmethod
    def _kv(req: Any) -> Any:
        """What holds the row of a request, and how much of that is not its own."""
        raise NotImplementedError

    def _takes_end_of(self, req: Any, up_to: int) -> bool:
        """Whether the exact tree may have all of a request that has ended. What is approximate is kept besides."""
        switched_off = getattr(self, "disable_finished_insert", False)
        if self._is_approximate(req):
            if not switched_off:
                self._keep_approximate(req, up_to)
            return False
        if not switched_off and up_to >= len(req.origin_input_ids):
            self._prompt_cached(req, self._kv(req).req_pool_idx)
        return True

    def _look(self, tokens: Any, key: TreeKey) -> tuple[int, MatchResult]:
        found = super().match_prefix(MatchPrefixParams(key=self._key(tokens, key)))  # type: ignore[misc]
        return len(found.device_indices), found

    @staticmethod
    def _key(tokens: Any, key: TreeKey) -> RadixKey:
        """The first of these releases do not know a salt, and no request has one there."""
        return RadixKey(tokens, key.extra_key, **({} if key.cache_salt is None else {"cache_salt": key.cache_salt}))

    def _tree_key(self, req: Any) -> TreeKey:
        return TreeKey(req.extra_key, getattr(req, "cache_salt", None), req.lora_id)

    def _with_in_place(self, exact: MatchResult, in_place: InPlace) -> MatchResult:
        return exact._replace(device_indices=torch.cat([exact.device_indices, in_place.slots]))

    def _prefix_len(self, req: Any) -> int:
        return len(req.prefix_indices)

    def _owned_by_trees(self, req: Any) -> int:
        return int(self._kv(req).cache_protected_len)

    def _set_owned_by_trees(self, req: Any, tokens: int) -> None:
        self._kv(req).cache_protected_len = tokens

    def _row(self, req: Any) -> torch.Tensor:
        row: torch.Tensor = self.req_to_token_pool.req_to_token[self._kv(req).req_pool_idx]
        return row

    def _tokens(self, req: Any, up_to: int) -> Any:
        return (req.origin_input_ids + req.output_ids)[:up_to]
