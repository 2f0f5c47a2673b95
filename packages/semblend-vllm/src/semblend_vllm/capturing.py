"""Which prompts become donors, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semblend_core import Settings
from semblend_vllm.donor_books import DonorBooks
from semblend_vllm.messages import Capture
from semblend_vllm.requests import FollowedRequest


class Capturing:
    def __init__(self, settings: Settings, donors: DonorBooks) -> None:
        self._settings, self._donors = settings, donors

    def after_step(
        self, followed: FollowedRequest, tokens: int, block_ids_of: Callable[[str], list[int]], *, proved: bool
    ) -> Capture | None:
        """What to keep of a request after a step that computes ``tokens`` of it: once, when its prompt is complete.

        Until the self-test is ``proved``, prompts are read for it that nobody wants to keep.
        """
        if followed.captured or not _completes_prompt(followed.request, tokens):
            return None
        followed.captured = True
        whole = followed.request.num_prompt_tokens
        # Of one that was served approximately only the untouched beginning.
        exact = whole if followed.approximate_from is None else followed.approximate_from
        wanted = followed.wish.makes_donor(self._settings)
        if exact < self._settings.min_span_tokens or (proved and not wanted):
            return None
        kept, blocks = followed.token_ids[:exact], block_ids_of(followed.request_id)
        donor_id = None
        if wanted:
            donor_id = self._donors.begin_capture(followed.namespace, kept, followed.request_id)
        if donor_id is None and proved:
            return None
        return Capture(donor_id, followed.namespace, blocks, kept)


def _completes_prompt(request: Any, tokens: int) -> bool:
    return bool(request.num_computed_tokens + tokens >= request.num_prompt_tokens)
