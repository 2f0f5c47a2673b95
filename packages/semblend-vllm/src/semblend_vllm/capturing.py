"""Which prompts become donors, and when."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from semblend_core import Settings
from semblend_vllm.donor_books import DonorBooks
from semblend_vllm.messages import Capture
from semblend_vllm.requests import FollowedRequest


class Capturing:
    def __init__(self, settings: Settings, donors: DonorBooks) -> None:
        self._policy, self._share, self._shortest = settings.capture, settings.capture_share, settings.min_span_tokens
        self._donors = donors

    def after_step(
        self, followed: FollowedRequest, tokens: int, block_ids_of: Callable[[str], list[int]]
    ) -> Capture | None:
        """What to keep of a request after a step that computes ``tokens`` of it: once, when its prompt is complete."""
        if followed.captured or not _completes_prompt(followed.request, tokens):
            return None
        followed.captured = True
        whole = followed.request.num_prompt_tokens
        # Of one that was served approximately only the untouched beginning.
        exact = whole if followed.approximate_from is None else followed.approximate_from
        if exact < self._shortest or not self._wanted(followed):
            return None
        kept = followed.token_ids[:exact]
        donor_id = self._donors.begin_capture(followed.namespace, kept, followed.request_id)
        if donor_id is None:
            return None
        return Capture(donor_id, followed.namespace, block_ids_of(followed.request_id), kept)

    def _wanted(self, followed: FollowedRequest) -> bool:
        if followed.capture is not None:
            return followed.capture
        return self._policy == "all" or (self._policy == "sampled" and random.random() < self._share)


def _completes_prompt(request: Any, tokens: int) -> bool:
    return bool(request.num_computed_tokens + tokens >= request.num_prompt_tokens)
