"""The prefix contract as it was proposed for SGLang: other tokens whose cached KV stands for the request's first ones.

For providers that have nothing better. The KV is taken where it lies, at the same positions and without a copy.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from semblend_core import SemanticPrefixProvider, SemanticPrefixResult
from semblend_sglang.following import Following
from semblend_sglang.guard import guarded
from semblend_sglang.requests import Asked, FollowedRequest, NamespaceBook

logger = logging.getLogger(__name__)

Look = Callable[[Any], tuple[int, Any]]
"""How many of some tokens the exact tree holds on the device, and SGLang's own name for that match."""


class AliasPath(Following):
    """Makes the four calls of a :class:`SemanticPrefixProvider`. Whatever it raises is logged and counts as None."""

    def __init__(self, provider: SemanticPrefixProvider, namespaces: NamespaceBook, page_size: int) -> None:
        super().__init__(namespaces)
        self.provider, self._page_size = provider, page_size
        provider.on_init()

    def match(self, asked: Asked, look: Look) -> Any | None:
        """A match of other tokens that is longer than the exact one; None where the exact one stands."""
        try:
            return self._match(asked, look)
        except Exception:
            logger.exception("the provider's tokens are of no use: %s is prefilled normally", asked.request_id)
            followed = self.of(asked.request)
            if followed is not None:
                followed.alias = None
            return None

    def cached(self, asked: Asked) -> None:
        followed = self.of(asked.request)
        if followed is None or followed.captured or followed.approximate or followed.wish.capture is False:
            return
        if asked.unsupported is not None:
            return
        followed.captured = True
        guarded("on_request_cached", self.provider.on_request_cached, asked.request_id, followed.token_ids)

    def forbid_insert(self, request: Any) -> None:
        """Set SGLang's own do-not-publish switch where ``request`` took KV of other tokens."""
        followed = self.of(request)
        if followed is not None and followed.approximate:
            followed.forbid_insert()

    def admitted(self, request_id: str) -> None:
        followed = self._followed.get(request_id)
        if followed is not None:
            followed.admitted = True
            self._seen.pop(request_id, None)

    def released(self, request: Any) -> None:
        followed = self.of(request)
        if followed is not None:
            self._forget(followed)

    def close(self) -> None:
        guarded("on_shutdown", self.provider.on_shutdown)

    def _match(self, asked: Asked, look: Look) -> Any | None:
        followed = self._follow(asked)
        if followed is None:
            return None
        followed.restore_insert()  # What the last round took does not bind this one.
        tokens = self._alternate(followed, asked)
        if tokens is None:
            return None
        length, match = look(tokens)
        if length <= asked.exact_tokens:
            return None
        same = np.array_equal(tokens[:length], followed.token_ids[:length])
        # KV of other tokens must never be found under this request's.
        followed.approximate = not same or followed.alias is None or followed.alias.skip_insert
        return match

    def _alternate(self, followed: FollowedRequest, asked: Asked) -> array[int] | None:
        """The tokens to match instead. The provider is asked once per length of the exact prefix."""
        if followed.wish.mode != "on" or asked.unsupported is not None or asked.unsettled:
            return None
        if asked.exact_tokens >= followed.token_ids.size - 1:
            return None
        question = (0, asked.exact_tokens)
        if followed.asked != question:
            followed.asked, followed.alias = question, None
            followed.alias = self._ask(followed)
        if followed.alias is None:
            return None
        # The last token is always computed: the engine samples from its logits.
        usable = min(followed.alias.num_cached_tokens, followed.token_ids.size - 1)
        usable -= usable % self._page_size
        return array("q", followed.alias.alternate_token_ids[:usable].tolist()) if usable > asked.exact_tokens else None

    def _ask(self, followed: FollowedRequest) -> SemanticPrefixResult | None:
        result = guarded("on_prefix_miss", self.provider.on_prefix_miss, followed.request_id, followed.token_ids)
        return result if isinstance(result, SemanticPrefixResult) else None
