"""SemBlend behind the Python provider interface that dynamo#7520 proposes for Dynamo's own KV router.

The interface names one donor, and no tenant: a provider is made for one namespace. ``similarity`` is the share of the
prompt's tokens that the donor holds, token by token.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semblend_core import Namespace, as_token_ids
from semblend_dynamo.placement import DonorBook, DonorKey, Finding


@dataclass(frozen=True, slots=True)
class SemanticMatch:
    """The donor whose tokens the router should look up in its index."""

    donor_token_ids: Sequence[int]
    similarity: float
    donor_id: str
    metadata: Mapping[str, Any] | None = None
    """Here: ``spans``, the runs that the prompt shares with the donor."""


class SemBlendKvCacheProvider:
    """Duck-typed: Dynamo 1.6 has no such class to inherit from. Methods may be called from many tasks at once."""

    def __init__(self, namespace: Namespace, book: DonorBook | None = None) -> None:
        self._namespace = namespace
        self._book = book or DonorBook(engine="dynamo")
        self._numbers = itertools.count()

    async def find_semantic_match(
        self, token_ids: Sequence[int], prompt_text: str | None = None
    ) -> SemanticMatch | None:
        """The donor that holds most of the prompt; None: none holds enough. ``prompt_text`` is not needed."""
        request_id = f"semantic-match-{next(self._numbers)}"
        finding = self._book.find(request_id, self._namespace, as_token_ids(token_ids))
        self._book.report(request_id, placed=False, reason=finding.reason)
        return self._match(finding)

    async def register_donor(self, donor_id: str, token_ids: Sequence[int], prompt_text: str | None = None) -> None:
        """Returns when the donor can be found. The work is done on another thread."""
        await asyncio.to_thread(self._book.add, self._namespace, donor_id, as_token_ids(token_ids))

    def on_eviction(self, donor_id: str) -> None:
        self._book.forget(DonorKey(self._namespace.digest, donor_id))

    def _match(self, finding: Finding) -> SemanticMatch | None:
        for donor_id in finding.donor_ids:
            tokens = self._book.tokens(self._namespace, donor_id)
            if tokens is not None:
                pieces = [piece for piece in finding.pieces if piece.donor_id == donor_id]
                spans = [(piece.target_start, piece.donor_start, piece.length) for piece in pieces]
                shared = sum(piece.length for piece in pieces)
                share = min(1.0, shared / finding.prompt_tokens)
                return SemanticMatch(tokens.tolist(), share, donor_id, {"spans": spans})
        return None
