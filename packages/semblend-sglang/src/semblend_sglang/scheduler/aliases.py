"""The prefix contract as it was proposed for SGLang: other tokens whose cached KV stands for the request's first ones.

For providers that have nothing better. The KV is taken where it lies, at the same positions and without a copy. It is
KV of other tokens, so it counts as an ``alias`` and never as reuse.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from semblend_core import (
    DeclineReason,
    Outcome,
    ProviderError,
    SemanticLookupProvider,
    SemanticPrefixProvider,
    SemanticPrefixResult,
    Settings,
)
from semblend_core.serving import Finding, Namespaces, Stage, contain, may_share
from semblend_sglang.scheduler.requests import Asked, SglangLife, SglangRequests

logger = logging.getLogger(__name__)

Look = Callable[[Any], tuple[int, Any]]
"""How many of some tokens the exact tree holds on the device, and SGLang's own name for that match."""


class Ledger(Protocol):
    """Who counts what became of the requests."""

    def report_outcome(self, outcome: Outcome) -> None: ...


class AliasPath:
    """Makes the four calls of a :class:`SemanticPrefixProvider`. Whatever it raises is logged and counts as None.

    It outlives its provider: requests that took KV of other tokens must be known until they end.
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        namespaces: Namespaces,
        page_size: int,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_change`` is called after outcomes were reported."""
        self.provider: SemanticPrefixProvider | None = None
        self.ledger, self._settings, self._page_size, self._on_change = ledger, settings, page_size, on_change
        self.requests = SglangRequests(namespaces, ledger.report_outcome)

    def set_provider(self, provider: SemanticPrefixProvider | None) -> None:
        """Register a provider, replace the one there is, or with None clear it. The scheduler's thread.

        Requests that wait are asked about anew; those that are computed keep what they have.
        """
        if provider is self.provider:
            return
        if provider is not None and not isinstance(provider, SemanticPrefixProvider):
            raise ProviderError(f"a {type(provider).__name__} is no SemanticPrefixProvider of semblend_core")
        if isinstance(provider, SemanticLookupProvider):
            raise ProviderError("a SemanticLookupProvider is set at the start: name it in SEMBLEND_SGLANG_PROVIDER")
        self.close()
        if provider is not None:
            provider.on_init()
        self.provider = provider
        for life in self.requests:
            if life.is_queued:
                life.question = life.alias = None

    def serves(self, request: Any) -> bool:
        """Whether this request is asked about here: there is a provider, or was one when it came."""
        return self.provider is not None or self.requests.of_request(request) is not None

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
        self._changed()

    def admitted(self, request: Any) -> None:
        life = self.requests.of_request(request)
        if life is None:
            return
        if life.alias_tokens:
            self.requests.take_alias(life, life.alias_tokens)
        else:
            self.requests.serve_without(life, Stage.COLD, None)
        self._changed()

    def cached(self, asked: Asked) -> None:
        life = self.requests.of_request(asked.request)
        if life is None or life.captured or life.is_approximate or life.wish.capture is False or self.provider is None:
            return
        if asked.unsupported is None and may_share(self._settings, life.namespace):
            life.captured = True
            contain("on_request_cached", self.provider.on_request_cached, life.request_id, life.token_ids)

    def released(self, request: Any) -> None:
        life = self.requests.of_request(request)
        if life is not None:
            self.requests.end(life)
        self._changed()

    def close(self) -> None:
        """The provider is asked no more."""
        provider, self.provider = self.provider, None
        if provider is not None:
            contain("on_shutdown", provider.on_shutdown)

    def _changed(self) -> None:
        contain("the metrics", self._on_change)

    def _match(self, asked: Asked, look: Look) -> Any | None:
        life = self.requests.follow(asked)
        if life is None:
            return None
        life.restore_insert()  # What the last round took does not bind this one.
        life.alias_tokens = 0
        tokens = self._alternate(life, asked)
        if tokens is None:
            return None
        length, match = look(tokens)
        if length <= asked.exact_tokens:
            life.finding = Finding(False, DeclineReason.DONOR_EVICTED)
            return None
        same = np.array_equal(tokens[:length], life.token_ids[:length])
        if not same:
            life.alias_tokens = length - asked.exact_tokens
        if not same or life.alias is None or life.alias.skip_insert:
            life.approximate_from = asked.exact_tokens  # KV of other tokens must never be found under this request's.
        return match

    def _alternate(self, life: SglangLife, asked: Asked) -> array[int] | None:
        """The tokens to match instead. The provider is asked once per length of the exact prefix."""
        if life.wish.mode != "on" or self.provider is None:
            return None
        life.finding = Finding(False, self._why_not(life, asked) or DeclineReason.NO_SPANS)
        if life.finding.reason is not DeclineReason.NO_SPANS:
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

    def _why_not(self, life: SglangLife, asked: Asked) -> DeclineReason | None:
        """Why the provider is not asked."""
        if asked.unsupported is not None:
            return DeclineReason.UNSUPPORTED_REQUEST
        if not may_share(self._settings, life.namespace):
            return DeclineReason.NO_SALT
        if asked.unsettled:
            return DeclineReason.EXACT_PREFIX_ELSEWHERE
        return DeclineReason.EXACT_PREFIX_COVERS if asked.exact_tokens >= life.token_ids.size - 1 else None
