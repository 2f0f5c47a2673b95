"""What all generations of SGLang's cache have in common."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, EvictResult

from semblend_core import ProviderError, SemanticPrefixProvider, TokenIds
from semblend_core.serving import contain, shown_as_cached, token_ids_of
from semblend_core.serving.tree import InPlace, Load
from semblend_sglang.compat.support import why_not_for
from semblend_sglang.scheduler.aliases import AliasPath
from semblend_sglang.scheduler.requests import Asked, SglangLife, TreeKey
from semblend_sglang.scheduler.side import Side


class SemBlendCache:
    """Mixed into SGLang's own cache class, in front of it."""

    SWITCH_STOPS_PIECES: ClassVar[bool]
    """Whether SGLang does not advance a prompt in pieces while its do-not-publish switch is set."""
    semblend: Side | None = None
    """None until the engine is complete, and for good where it is not supported: then this is SGLang's own cache."""
    semblend_aliases: AliasPath | None = None
    """For a provider that has only other tokens to offer. While one is set, it is asked instead."""
    disable: bool
    page_size: int
    token_to_kv_pool_allocator: Any
    req_to_token_pool: Any

    # --- ExactTree, where all answer alike --------------------------------------------------------------------------

    def tokens_of(self, token_ids: TokenIds) -> array[int]:
        tokens = array("q")
        tokens.frombytes(token_ids.astype(np.int64).view(np.uint8).data)
        return tokens

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
        self.token_to_kv_pool_allocator.free_segment(slots, start_pos=0)  # Whole pages, as in a row.

    # --- As it was proposed for SGLang (sgl-project/sglang#20806) ----------------------------------------------------

    def set_semantic_provider(self, provider: SemanticPrefixProvider | None) -> None:
        """Register a provider, replace the one there is, or with None clear it. Call it on the scheduler's thread.

        Waiting requests are asked of it and not of SemBlend's own search. What it proposes is KV of other tokens.
        """
        if self.semblend_aliases is None:
            side = self.semblend
            if side is None:
                raise ProviderError("SemBlend is off here, the log says why: no provider can be set")
            if side.ranks is not None:
                raise ProviderError("with several ranks no provider can be set: each would ask one of its own")
            namespaces, changed = side.requests.namespaces, side.changed
            self.semblend_aliases = AliasPath(side.provider, side.settings, namespaces, self.page_size, changed)
        self.semblend_aliases.set_provider(provider)

    # --- The hooks' calls --------------------------------------------------------------------------------------------

    def semblend_may_load(self) -> bool:
        """Whether every slot of the tree holds its KV for whatever is queued from now on."""
        return True

    def semblend_admitted(self, req: Any, adder: Any) -> None:
        load = self.semblend.landing.of(req) if self.semblend is not None else None
        if load is None:
            return
        # SGLang shows the whole prefix as cached, less what it believes computed before.
        req.already_computed = self.semblend_not_shown(load)
        adder.log_hit_tokens -= load.claim.row_tokens
        adder.log_input_tokens += load.claim.row_tokens

    def semblend_not_shown(self, load: Load) -> int:
        """Tokens of a claim that its client does not see as cached. Rows are computed, at any rate."""
        assert self.semblend is not None
        return load.claim.length - shown_as_cached(self.semblend.settings, load.claim.reused_tokens)

    def semblend_counts_on(self, req: Any, life: SglangLife) -> bool:
        """Whether SGLang took what it was told of this request for granted: it may be made to forget all matches."""
        promised = 0 if life.claim is None else life.claim.length
        start = life.claim.start if life.claim is not None else life.in_place.end if life.in_place is not None else 0
        return (self._prefix_len(req), req.host_hit_length) == (start, promised)

    def semblend_row(self, req: Any) -> torch.Tensor:
        """The slots of its tokens, on the device."""
        return self._row(req)

    def semblend_is_empty(self) -> bool:
        """Whether it holds no KV at all. What may lie in host memory or storage counts."""
        holds = self.evictable_size() + self.protected_size()
        return not holds and getattr(self, "cache_controller", None) is None

    def semblend_forget_private(self, req: Any) -> None:
        """SGLang did not take the request: what it was given is gone."""

    # --- Translations ------------------------------------------------------------------------------------------------

    def _longer(self, asked: Asked, exact: Any) -> Any:
        """``exact``, SGLang's own match, or one that counts on what SemBlend has besides."""
        if self.semblend is not None and not self._asks_alias(asked.request):
            life = self.semblend.match(asked)
            if life is None:
                return exact
            if life.in_place is not None and life.in_place.start < asked.exact_tokens:
                # An answer that is scored behind the KV that it was served with. More is exact now than was then.
                _, exact = self._look(self.tokens_of(life.token_ids[: life.in_place.start]), asked.key)
            found = exact if life.in_place is None else self._with_in_place(exact, life.in_place)
            return found if life.claim is None else found._replace(host_hit_length=life.claim.length)
        if self.semblend_aliases is None or not self._asks_alias(asked.request):
            return exact  # What a request had that was retracted is computed again.
        found = self.semblend_aliases.match(asked, lambda tokens: self._look(tokens, asked.key))
        life = self.semblend_aliases.requests.of_request(asked.request)
        # Where the switch would stop a prompt in pieces, the mark alone keeps it out of the tree.
        if life is not None and life.is_approximate and not self.SWITCH_STOPS_PIECES:
            life.forbid_insert()
        return exact if found is None else found

    def _asks_alias(self, request: Any) -> bool:
        """Whether a provider of somebody else's is asked. What SemBlend's own search knows stays with it."""
        if self.semblend_aliases is None or request.output_ids or not self.semblend_aliases.serves(request):
            return False
        return self.semblend is None or self.semblend.requests.of_request(request) is None

    def _prompt_cached(self, req: Any, pool_index: int) -> None:
        """The tree holds the whole prompt, in this row of slots."""
        asked = self._asked(req, None, 0)
        if self.semblend is not None:
            slots = self.req_to_token_pool.req_to_token[pool_index]
            self.semblend.capturing.cached(asked, lambda: slots[: len(req.origin_input_ids)].to(torch.int64))
        if self.semblend_aliases is not None:
            self.semblend_aliases.cached(asked)

    # --- What was computed behind approximate KV ---------------------------------------------------------------------

    def _keep_approximate(self, req: Any, up_to: int) -> None:
        """Its exact opening goes into the exact tree, and the rest to its lineage. What they took is not its own."""
        contain("keeping what is behind approximate KV", self._keep, req, up_to)

    def _keep(self, req: Any, up_to: int) -> None:
        side = self.semblend
        life = side.requests.of_request(req) if side is not None else None
        if side is None or life is None or not side.may_keep(life):
            return
        opening = side.lineages.exact_opening(life)
        if self._owned_by_trees(req) < opening <= up_to:
            self._insert_exact(req, opening)
        owned = self._owned_by_trees(req)
        if owned >= opening:
            row = self._row(req)[:up_to]
            self._set_owned_by_trees(
                req, side.continuing.keep(life, token_ids_of(self._tokens(req, up_to)), row, owned)
            )

    def _evict_both(self, params: EvictParams, evict_exact: Callable[[EvictParams], EvictResult]) -> EvictResult:
        if self.semblend is None or not params.num_tokens:
            return evict_exact(params)
        result = EvictResult()

        def exact(tokens: int) -> int:
            nonlocal result
            result = evict_exact(replace(params, num_tokens=tokens))
            return int(result.num_tokens_evicted)

        pool_tokens = self.token_to_kv_pool_allocator.size
        gone = self.semblend.lineages.make_room(params.num_tokens, exact, pool_tokens)
        return replace(result, num_tokens_evicted=gone)

    def _evictable_approximate(self) -> int:
        return 0 if self.semblend is None else self.semblend.lineages.shadow.evictable_tokens

    def _held_approximate(self) -> int:
        return 0 if self.semblend is None else self.semblend.lineages.shadow.held_tokens

    def all_values_flatten(self) -> torch.Tensor:
        exact: torch.Tensor = super().all_values_flatten()  # type: ignore[misc]
        nodes = self.semblend.lineages.shadow.nodes() if self.semblend is not None else ()
        return torch.cat([exact, *(node.slots for node in nodes)])

    def evictable_size(self) -> int:
        return int(super().evictable_size()) + self._evictable_approximate()  # type: ignore[misc]

    def protected_size(self) -> int:
        return int(super().protected_size()) + self._held_approximate()  # type: ignore[misc]

    # --- What each generation knows by itself ------------------------------------------------------------------------

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

    def _with_in_place(self, exact: Any, in_place: InPlace) -> Any:
        """SGLang's match, longer by what lies in place."""
        raise NotImplementedError

    def _insert_exact(self, req: Any, up_to: int) -> None:
        """Give the first tokens of a request, whole pages, to the exact tree."""
        raise NotImplementedError

    def _prefix_len(self, req: Any) -> int:
        raise NotImplementedError

    def _owned_by_trees(self, req: Any) -> int:
        """How many of its first tokens are not freed with it."""
        raise NotImplementedError

    def _set_owned_by_trees(self, req: Any, tokens: int) -> None:
        raise NotImplementedError

    def _row(self, req: Any) -> torch.Tensor:
        """Its slots, to be read and written."""
        raise NotImplementedError

    def _tokens(self, req: Any, up_to: int) -> Any:
        """Of its prompt and its answer."""
        raise NotImplementedError

    def _tree_key(self, req: Any) -> TreeKey:
        raise NotImplementedError
