"""What both generations of SGLang's cache have in common."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from semblend_core import TokenIds
from semblend_sglang.compat.support import why_not_for
from semblend_sglang.scheduler.aliases import AliasPath
from semblend_sglang.scheduler.requests import Asked, TreeKey
from semblend_sglang.scheduler.side import Side


class SemBlendCache:
    """Mixed into SGLang's own cache class, in front of it."""

    SWITCH_STOPS_PIECES: ClassVar[bool]
    """Whether SGLang does not advance a prompt in pieces while its do-not-publish switch is set."""
    semblend: Side | None = None
    """None until the engine is complete, and for good where it is not supported: then this is SGLang's own cache."""
    semblend_aliases: AliasPath | None = None
    """Instead of it, for a provider that has only other tokens to offer."""
    disable: bool
    token_to_kv_pool_allocator: Any
    req_to_token_pool: Any

    # --- ExactTree, where both answer alike --------------------------------------------------------------------------

    def tokens_of(self, token_ids: TokenIds) -> array[int]:
        return array("q", token_ids.astype(np.int64).tobytes())

    def allocate(self, tokens: int) -> torch.Tensor | None:
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

    # --- The hooks' calls --------------------------------------------------------------------------------------------

    def semblend_may_load(self) -> bool:
        """Whether every slot of the tree holds its KV for whatever is queued from now on."""
        return True

    def semblend_admitted(self, req: Any, adder: Any) -> None:
        load = self.semblend.load_of(req) if self.semblend is not None else None
        if load is None:
            return
        # SGLang counts the whole prefix as cached, less what it believes computed before: rows are computed.
        req.already_computed = load.claim.row_tokens
        adder.log_hit_tokens -= load.claim.row_tokens
        adder.log_input_tokens += load.claim.row_tokens
        self.semblend_continued(req, finished=adder.new_chunked_req is not req)

    def semblend_continued(self, req: Any, finished: bool) -> None:
        """A piece of an approximate prompt, or all of it, is admitted. ``finished``: none follows."""
        life = self.semblend.requests.of_request(req) if self.semblend is not None else None
        if life is not None and life.is_approximate and (finished or not self.SWITCH_STOPS_PIECES):
            life.forbid_insert()

    def semblend_forget_private(self, req: Any) -> None:
        """SGLang did not take the request: what it was given is gone."""

    # --- Translations ------------------------------------------------------------------------------------------------

    def _longer(self, asked: Asked, exact: Any) -> Any:
        """``exact``, SGLang's own match, or one that counts on what SemBlend has besides."""
        if self.semblend is not None:
            claim = self.semblend.match(asked)
            return exact if claim is None else exact._replace(host_hit_length=claim.length)
        if self.semblend_aliases is None:
            return exact
        found = self.semblend_aliases.match(asked, lambda tokens: self._look(tokens, asked.key))
        life = self.semblend_aliases.requests.of_request(asked.request)
        # Where the switch would stop a prompt in pieces, the mark alone keeps it out of the tree.
        if life is not None and life.is_approximate and not self.SWITCH_STOPS_PIECES:
            life.forbid_insert()
        return exact if found is None else found

    def _prompt_cached(self, req: Any, pool_index: int) -> None:
        """The tree holds the whole prompt, in this row of slots."""
        asked = self._asked(req, None, 0)
        if self.semblend is not None:
            slots = self.req_to_token_pool.req_to_token[pool_index]
            self.semblend.cached(asked, lambda: slots[: len(req.origin_input_ids)].to(torch.int64))
        elif self.semblend_aliases is not None:
            self.semblend_aliases.cached(asked)

    def _parts(self) -> Iterator[Side | AliasPath]:
        return (part for part in (self.semblend, self.semblend_aliases) if part is not None)

    def _is_approximate(self, req: Any) -> bool:
        known = (part.requests.of_request(req) for part in self._parts())
        return any(life is not None and life.is_approximate for life in known)

    def _asked(self, req: Any, key: Any, exact_tokens: int, unsettled: bool = False) -> Asked:
        return Asked(req, self._tree_key(req), exact_tokens, why_not_for(req, key), unsettled)

    def _look(self, tokens: Any, key: TreeKey) -> tuple[int, Any]:
        """How many of ``tokens`` the device holds, and SGLang's match of them."""
        raise NotImplementedError

    def _tree_key(self, req: Any) -> TreeKey:
        raise NotImplementedError
