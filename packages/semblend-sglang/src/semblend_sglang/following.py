"""Which requests are known, from SGLang's first question about one to the release of its memory."""

from __future__ import annotations

import time
from typing import Any

from semblend_core import Wish
from semblend_sglang.requests import Asked, FollowedRequest, NamespaceBook, token_ids_of

FORGOTTEN_AFTER_S = 600.0
"""A waiting request that SGLang has not asked about for so long has left the queue in a way nobody told."""


class Following:
    """By SGLang's id for them. Ids come from clients: one may return with another prompt before the first has ended."""

    def __init__(self, namespaces: NamespaceBook) -> None:
        self._namespaces = namespaces
        self._followed: dict[str, FollowedRequest] = {}
        self._seen: dict[str, float] = {}
        """When SGLang last asked about each waiting request, the longest ago first."""

    def of(self, request: Any) -> FollowedRequest | None:
        """What is known of this very request, and not of another with its id."""
        followed = self._followed.get(request.rid)
        return followed if followed is not None and followed.request is request else None

    def is_approximate(self, request_id: str) -> bool:
        followed = self._followed.get(request_id)
        return followed is not None and followed.approximate

    def waiting_requests(self) -> set[str]:
        return {request_id for request_id, followed in self._followed.items() if not followed.admitted}

    def left_queue(self, request_id: str) -> None:
        """It waits no longer and was not admitted. One that is computed already ends with the release of its memory."""
        followed = self._followed.get(request_id)
        if followed is not None and not followed.admitted:
            self._aborted(followed)
            self._forget(followed)

    @property
    def open_requests(self) -> int:
        return len(self._followed)

    def _follow(self, asked: Asked) -> FollowedRequest | None:
        """None while another request with the same id is being computed: its KV must not be taken for this one's."""
        followed = self._followed.get(asked.request_id)
        if followed is not None and followed.request is not asked.request:
            if followed.admitted:
                return None
            self.left_queue(asked.request_id)
            followed = None
        if followed is None:
            self._forget_unseen()
            followed = self._followed[asked.request_id] = FollowedRequest(
                asked.request,
                asked.request_id,
                self._namespaces.of(asked.key),
                asked.key,
                token_ids_of(asked.prompt),
                Wish.among(asked.request.sampling_params.custom_params),
            )
            self._began(followed)
        if not followed.admitted:
            self._seen.pop(asked.request_id, None)
            self._seen[asked.request_id] = time.monotonic()
        return followed

    def _began(self, followed: FollowedRequest) -> None:
        """For what else has to be done when a request is first seen."""

    def _aborted(self, followed: FollowedRequest) -> None:
        """For what else has to be done when a waiting request is gone."""

    def _forget(self, followed: FollowedRequest) -> None:
        followed.restore_insert()
        self._followed.pop(followed.request_id, None)
        self._seen.pop(followed.request_id, None)

    def _forget_unseen(self) -> None:
        """Requests that left the queue unseen must not pin donors."""
        horizon = time.monotonic() - FORGOTTEN_AFTER_S
        while self._seen:
            request_id, seen = next(iter(self._seen.items()))
            if seen > horizon:
                break
            self.left_queue(request_id)
            self._seen.pop(request_id, None)
