"""The prefix contract as it was proposed for SGLang: other tokens whose cached KV stands for the request's first ones.

For providers that have nothing better. The KV is taken where it lies, at the same positions and without a copy.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from semblend_core import SemanticPrefixProvider, SemanticPrefixResult, Settings
from semblend_core.serving import Namespaces, Stage, contain, may_share
from semblend_sglang.scheduler.requests import Asked, SglangLife, SglangRequests

logger = logging.getLogger(__name__)

Look = Callable[[Any], tuple[int, Any]]
"""How many of some tokens the exact tree holds on the device, and SGLang's own name for that match."""


class AliasPath:
    """Makes the four calls of a :class:`SemanticPrefixProvider`. Whatever it raises is logged and counts as None."""

    def __init__(
        self, provider: SemanticPrefixProvider, settings: Settings, namespaces: Namespaces, page_size: int
    ) -> None:
        self.provider, self._settings, self._page_size = provider, settings, page_size
        self.requests = SglangRequests(namespaces)
        provider.on_init()

    def match(self, asked: Asked, look: Look) -> Any | None:
        """A match of other tokens that is longer than the exact one; None where the exact one stands."""
        try:
            return self._match(asked, look)
        except Exception:
            logger.exception("the provider's tokens are of no use: %s is prefilled normally", asked.request.rid)
            life = self.requests.of_request(asked.request)
            if life is not None:
                life.alias = None
            return None

    def leave_queue(self, request_id: str) -> None:
        self.requests.leave_queue(request_id)

    def admitted(self, request: Any) -> None:
        life = self.requests.of_request(request)
        if life is not None:
            self.requests.serve_without(life, Stage.COLD, None)

    def cached(self, asked: Asked) -> None:
        life = self.requests.of_request(asked.request)
        if life is None or life.captured or life.is_approximate or life.wish.capture is False:
            return
        if asked.unsupported is None and may_share(self._settings, life.namespace):
            life.captured = True
            contain("on_request_cached", self.provider.on_request_cached, life.request_id, life.token_ids)

    def released(self, request: Any) -> None:
        life = self.requests.of_request(request)
        if life is not None:
            self.requests.end(life)

    def close(self) -> None:
        contain("on_shutdown", self.provider.on_shutdown)

    def _match(self, asked: Asked, look: Look) -> Any | None:
        life = self.requests.follow(asked)
        if life is None:
            return None
        life.restore_insert()  # What the last round took does not bind this one.
        tokens = self._alternate(life, asked)
        if tokens is None:
            return None
        length, match = look(tokens)
        if length <= asked.exact_tokens:
            return None
        same = np.array_equal(tokens[:length], life.token_ids[:length])
        if not same or life.alias is None or life.alias.skip_insert:
            life.approximate_from = asked.exact_tokens  # KV of other tokens must never be found under this request's.
        return match

    def _alternate(self, life: SglangLife, asked: Asked) -> array[int] | None:
        """The tokens to match instead. The provider is asked once per length of the exact prefix."""
        if life.wish.mode != "on" or asked.unsupported is not None or asked.unsettled:
            return None
        if not may_share(self._settings, life.namespace):
            return None
        if asked.exact_tokens >= life.token_ids.size - 1:
            return None
        question = (0, asked.exact_tokens)
        if life.question != question:
            life.question, life.alias = question, None
            said = contain("on_prefix_miss", self.provider.on_prefix_miss, life.request_id, life.token_ids)
            life.alias = said if isinstance(said, SemanticPrefixResult) else None
        if life.alias is None:
            return None
        # The last token is always computed: the engine samples from its logits.
        usable = min(life.alias.num_cached_tokens, life.token_ids.size - 1)
        usable -= usable % self._page_size
        return array("q", life.alias.alternate_token_ids[:usable].tolist()) if usable > asked.exact_tokens else None
