"""A provider of somebody else's, by the contract that was proposed for SGLang: every prompt is like the first one."""

from __future__ import annotations

from collections.abc import Sequence

from semblend_core import SemanticPrefixProvider, SemanticPrefixResult, TokenIds, as_token_ids


class FirstPrompt(SemanticPrefixProvider):
    """Once a prompt is cached, it is proposed for all others."""

    def __init__(self) -> None:
        self._first: TokenIds | None = None

    def on_init(self) -> None:
        """Nothing to prepare."""

    def on_prefix_miss(self, rid: str, token_ids: Sequence[int]) -> SemanticPrefixResult | None:
        return None if self._first is None else SemanticPrefixResult(self._first, self._first.size, skip_insert=True)

    def on_request_cached(self, rid: str, token_ids: Sequence[int]) -> None:
        if self._first is None:
            self._first = as_token_ids(token_ids)

    def on_shutdown(self) -> None:
        """Nothing to release."""
