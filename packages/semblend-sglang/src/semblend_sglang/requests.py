"""What is remembered of a request between SGLang's calls."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from semblend_core import DeclineReason, Namespace, SemanticPrefixResult, TokenIds, Wish, as_token_ids
from semblend_sglang.claims import Claim

if TYPE_CHECKING:
    from semblend_sglang.fetching import Coming


@dataclass(frozen=True, slots=True)
class TreeKey:
    """Under which name SGLang's exact cache keeps a request, besides its tokens."""

    extra_key: str | None
    """Includes the adapter's id: SGLang appends it."""
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """One question of SGLang's: what its own cache holds of a request that waits."""

    request: Any
    """SGLang's own object."""
    request_id: str
    prompt: Any
    """All prompt tokens, as SGLang keeps them."""
    key: TreeKey
    exact_tokens: int
    """What the exact cache covers on the device."""
    unsupported: str | None = None
    """Why nothing may be reused for this request."""
    unsettled: bool = False
    """SGLang's own cache has more of it off the device, or may yet bring more: nothing is promised in this round."""


@dataclass
class FollowedRequest:
    """One request from its first lookup to the release of its memory."""

    request: Any
    request_id: str
    namespace: Namespace
    key: TreeKey
    token_ids: TokenIds
    wish: Wish = field(default_factory=Wish)
    claim: Claim | None = None
    """What SGLang was told it may count on."""
    alias: SemanticPrefixResult | None = None
    """Tokens under which the exact cache is asked instead."""
    asked: tuple[int, int] | None = None
    """Generation of donors and exact prefix at its last lookup."""
    looked_up: bool = False
    found: bool = False
    reason: DeclineReason | None = None
    """What the last lookup said."""
    coming: Coming | None = None
    """What is fetched for its claim. Nobody else holds it, so it goes when it is not wanted any more."""
    postponed: int = 0
    """Rounds in which its rows found no room."""
    admitted: bool = False
    approximate: bool = False
    """Its memory holds relocated KV: nothing of it may enter the exact tree."""
    saved_skip_insert: bool | None = None
    """SGLang's own do-not-publish switch, as it was before SemBlend set it."""
    settled: bool = False
    """The outcome was reported."""
    captured: bool = False

    def drop_claim(self) -> None:
        """What was claimed does not stand any longer: it may be looked up again."""
        self.claim, self.coming, self.asked = None, None, None

    def forbid_insert(self) -> None:
        if self.saved_skip_insert is None:
            self.saved_skip_insert = bool(self.request.skip_radix_cache_insert)
        self.request.skip_radix_cache_insert = True

    def restore_insert(self) -> None:
        if self.saved_skip_insert is not None:
            self.request.skip_radix_cache_insert = self.saved_skip_insert
        self.saved_skip_insert, self.approximate = None, False


@dataclass
class NamespaceBook:
    """One function from a request's key to its namespace, for capture and lookup alike."""

    shared: dict[str, Any]
    """Fields that are the same for all requests of this engine."""
    most: int = 4096
    _known: OrderedDict[TreeKey, Namespace] = field(default_factory=OrderedDict)

    _epoch: str = "start"

    def new_weights(self) -> None:
        """What was computed until now is another model's. Random, so that no other process takes it for its own."""
        self._epoch = os.urandom(8).hex()
        self._known.clear()

    def of(self, key: TreeKey) -> Namespace:
        namespace = self._known.get(key)
        if namespace is None:
            # Both parts come from clients and may hold a tenant's salt, so both go where they are hashed.
            plain = key.extra_key is None and key.cache_salt is None
            salt = None if plain else json.dumps([key.extra_key, key.cache_salt])
            shared = {**self.shared, "extras": (*self.shared.get("extras", ()), ("epoch", self._epoch))}
            namespace = self._known[key] = Namespace(**shared, adapter=None, salt=salt)
            while len(self._known) > self.most:
                self._known.popitem(last=False)
        return namespace


def token_ids_of(prompt: Any) -> TokenIds:
    """SGLang's ``array('q')`` as the contract's ids."""
    return as_token_ids(np.asarray(prompt, dtype=np.int64))
