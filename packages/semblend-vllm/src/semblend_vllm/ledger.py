"""The requests that are followed, and what became of each: said once, when it is known."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from semblend_core import DeclineReason, Outcome, OutcomeKind, SemanticLookupProvider
from semblend_vllm.requests import FollowedRequest

logger = logging.getLogger(__name__)


class RequestLedger:
    def __init__(self, provider: SemanticLookupProvider) -> None:
        self._provider = provider
        self._followed: dict[str, FollowedRequest] = {}
        self._refused: set[str] = set()
        """Requests that cannot be followed, and were counted."""

    def __len__(self) -> int:
        return len(self._followed)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._followed

    def get(self, request_id: str) -> FollowedRequest | None:
        return self._followed.get(request_id)

    def __iter__(self) -> Iterator[FollowedRequest]:
        return iter(self._followed.values())

    def add(self, followed: FollowedRequest) -> None:
        self._followed[followed.request_id] = followed

    def refuse(self, request_id: str, reason: DeclineReason) -> None:
        """It is not of a kind that can be followed."""
        if request_id not in self._refused:
            self._refused.add(request_id)
            self._report(Outcome(request_id, OutcomeKind.DECLINED, reason=reason))

    def confirm(self, request_id: str, tokens: int, moved_bytes: int) -> None:
        """Its bytes have landed."""
        followed = self._followed.get(request_id)
        if followed is not None and not followed.settled:
            kind = OutcomeKind.MATERIALIZED
            self._report(Outcome(request_id, kind, confirmed_tokens=tokens, confirmed_bytes=moved_bytes))
            self._settle(followed)

    def decline(self, followed: FollowedRequest, reason: DeclineReason) -> None:
        """It is served without reuse. One that was never looked up has nothing to say."""
        if followed.settled:
            return
        if reason is DeclineReason.EXACT_PREFIX_COVERS:
            self._report(Outcome(followed.request_id, OutcomeKind.EXACT_PREFIX))
        elif followed.looked_up:
            self._report(Outcome(followed.request_id, OutcomeKind.DECLINED, reason=reason))
        self._settle(followed)

    def found_only(self, followed: FollowedRequest, reason: DeclineReason | None) -> None:
        """There was something to reuse, and it is not loaded: for ``reason``, or since nobody wanted it to be."""
        if not followed.settled:
            self._report(Outcome(followed.request_id, OutcomeKind.DISCOVERY_ONLY, reason=reason))
            self._settle(followed)

    def end(self, request_id: str) -> FollowedRequest | None:
        """vLLM has done with it. It stays while its load is with the workers, whose news come behind its end."""
        self._refused.discard(request_id)
        followed = self._followed.get(request_id)
        if followed is not None:
            followed.ended = True
            if followed.settled:
                del self._followed[request_id]
        return followed

    def _report(self, outcome: Outcome) -> None:
        self._provider.report_outcome(outcome)
        logger.debug("%s: %s %s", outcome.request_id, outcome.kind, outcome.reason or outcome.confirmed_tokens)

    def _settle(self, followed: FollowedRequest) -> None:
        followed.settled = True
        if followed.ended:
            self._followed.pop(followed.request_id, None)
