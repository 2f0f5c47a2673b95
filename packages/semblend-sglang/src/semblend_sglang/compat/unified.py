"""SGLang 0.5.22 and 0.5.23: ``UnifiedRadixCache``, in Python or Rust, which takes KV by ``checkpoint``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams, MatchPrefixParams, MatchResult
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.registry import create_unified_radix_cache
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from semblend_core.serving.tree import InPlace, TreeMatch
from semblend_sglang.compat.over_unified import SemBlendOverUnified
from semblend_sglang.scheduler.requests import TreeKey


class SemBlendUnifiedCache(SemBlendOverUnified, UnifiedRadixCache):  # type: ignore[misc]
    SWITCH_STOPS_PIECES = False

    def __init__(self, params: Any) -> None:
        self._private: dict[str, torch.Tensor] = {}
        """Slots that a request was given and that its row does not hold yet."""
        self._load_is_private = False
        self._exact_only = False
        super().__init__(params)

    @classmethod
    def build(cls, ctx: Any) -> SemBlendUnifiedCache:
        cache: SemBlendUnifiedCache = create_unified_radix_cache(ctx, cache_class=cls)
        return cache

    # --- SGLang's calls --------------------------------------------------------------------------------------------

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        exact = super().match_prefix(params)
        req = params.req
        if req is None or self.disable or req.kv.holds_kv:
            return exact
        asked = self._asked(req, params.key, exact.device_prefix_len, self._may_grow(req, exact))
        return self._longer(asked, exact)

    def init_load_back(self, params: InitLoadBackParams) -> Any:
        req, side = params.req, self.semblend
        self._load_is_private = False
        life = side.claimed(req) if side is not None and req is not None else None
        if side is None or life is None:
            return super().init_load_back(params)
        self._come_behind_loads()
        slots = side.admit(life)
        if slots is None:
            return 0, req.last_node
        self._load_is_private = True
        self._private[req.rid] = slots
        return len(slots), req.last_node

    def load_back_is_cache_owned(self) -> bool:
        return False if self._load_is_private else bool(super().load_back_is_cache_owned())

    def prefix_device_indices(self, req: Any) -> torch.Tensor:
        life = self.semblend.requests.of_request(req) if self.semblend is not None else None
        if life is None or not life.is_approximate:
            exact: torch.Tensor = super().prefix_device_indices(req)
            return exact
        parts = [self.path_device_indices(req.last_node)]
        if life.in_place is not None:
            parts.append(life.in_place.slots)
        private = self._private.pop(req.rid, None)
        if private is not None:
            parts.append(private.to(torch.int64))
        whole = torch.cat(parts)
        assert len(whole) == req.prefix_len, (req.rid, len(whole), req.prefix_len)
        return whole

    def checkpoint(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        if self._is_approximate(req):
            self._keep_approximate(req, up_to)
            return
        super().checkpoint(req, up_to=up_to, **kwargs)
        if up_to >= len(req.origin_input_ids) and not self.disable:
            self._prompt_cached(req, req.kv.req_pool_idx)

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        super().on_release(req, checkpointed=checkpointed)
        self._private.pop(req.rid, None)
        for part in self._parts():
            part.released(req)

    def reset(self) -> None:
        super().reset()
        self._private.clear()
        if self.semblend is not None:
            self.semblend.new_weights.tree_emptied()

    # --- The hooks' calls ------------------------------------------------------------------------------------------

    def semblend_may_load(self) -> bool:
        """Not while KV is ordered from host memory for the batch that is being put together.

        The tree counts its slots as filled already, and it is fetched only when the batch is complete.
        """
        return self.cache_controller is None or not self.cache_controller.load_queue

    @contextmanager
    def semblend_exact_only(self) -> Iterator[None]:
        """For a question of SGLang's whose answer decides what it asks its storage for: nothing is claimed."""
        self._exact_only = True
        try:
            yield
        finally:
            self._exact_only = False

    def semblend_forget_private(self, req: Any) -> None:
        self._private.pop(req.rid, None)

    # --- ExactTree -------------------------------------------------------------------------------------------------

    def find(self, tokens: Any, key: TreeKey) -> TreeMatch:
        length, found = self._look(tokens, key)
        node = found.last_device_node
        return TreeMatch(length, node, lambda: self.path_device_indices(node))

    def hold(self, node: Any) -> Any:
        return self.lock(node)

    def let_go(self, held: Any) -> None:
        self.unlock(held)

    # --- Translations ----------------------------------------------------------------------------------------------

    def _look(self, tokens: Any, key: TreeKey) -> tuple[int, MatchResult]:
        """What the device holds: the rest, if there is one in host memory, is left where it lies."""
        found = super().match_prefix(MatchPrefixParams(key=self._key(tokens, key)))
        return found.device_prefix_len, found._replace(host_hit_length=0)

    @staticmethod
    def _key(tokens: Any, key: TreeKey) -> RadixKey:
        return RadixKey(tokens, key.extra_key, cache_salt=key.cache_salt)

    def _tree_key(self, req: Any) -> TreeKey:
        return TreeKey(req.extra_key, req.cache_salt, req.lora_id)

    def _with_in_place(self, exact: MatchResult, in_place: InPlace) -> MatchResult:
        return exact._replace(device_prefix_len=in_place.end, cache_protected_len=in_place.end)

    def _insert_exact(self, req: Any, up_to: int) -> None:
        super().checkpoint(req, up_to=up_to)

    def _prefix_len(self, req: Any) -> int:
        return int(req.prefix_len)

    def _owned_by_trees(self, req: Any) -> int:
        return int(req.kv.cache_protected_len)

    def _set_owned_by_trees(self, req: Any, tokens: int) -> None:
        req.kv.cache_protected_len = tokens

    def _row(self, req: Any) -> torch.Tensor:
        row: torch.Tensor = self.req_to_token_pool.req_to_token[req.kv.req_pool_idx]
        return row

    def _tokens(self, req: Any, up_to: int) -> Any:
        return req.full_untruncated_fill_ids[:up_to]

    def _may_grow(self, req: Any, exact: MatchResult) -> bool:
        """Whether SGLang has exact tokens off the device, fetches some, or looks again as some were evicted."""
        if self._exact_only or exact.host_hit_length:
            return True
        if not self.enable_storage:
            return False
        was_there = req.storage_prefetch_last_match_len or 0
        return bool(self.has_ongoing_prefetch(req.cache_request_handle) or exact.device_prefix_len < was_there)

    def _come_behind_loads(self) -> None:
        """What is queued from now on finds the KV that is on its way from host memory."""
        for under_way in self.cache_controller.ack_load_queue if self.cache_controller is not None else ():
            under_way.finish_event.wait()
