"""What the scheduler's half remembers of a request between vLLM's calls."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from semblend_core import DeclineReason, Namespace, TokenIds, Wish, as_token_ids
from semblend_vllm.claims import Claim

Donor: TypeAlias = tuple[str, str]
"""(namespace digest, donor id)"""


@dataclass
class FollowedRequest:
    request: Any
    """vLLM's own object."""
    namespace: Namespace
    wish: Wish = field(default_factory=Wish)
    claim: Claim | None = None
    """What the engine was told it may count on; the load is under way or about to be."""
    ordered: bool = False
    """The load was ordered: nothing can be taken back."""
    postponed: int = 0
    """Steps in which the rows found no room."""
    looked_up: bool = False
    asked: tuple[int, int] | None = None
    """Generation of donors and exact prefix at its last lookup."""
    found: bool = False
    reason: DeclineReason | None = None
    """What the last lookup said."""
    lost: DeclineReason | None = None
    """Why the donor went that an earlier plan had counted on."""
    ended: bool = False
    """vLLM has done with it."""
    settled: bool = False
    """The outcome was reported."""
    approximate_from: int | None = None
    """KV from this position on is, or is about to be, approximate. Set back only together with its blocks."""
    captured: bool = False
    _true_hashes: list[Any] | None = field(default=None, repr=False)

    @property
    def request_id(self) -> str:
        return str(self.request.request_id)

    @cached_property
    def token_ids(self) -> TokenIds:
        """Of the prompt. Made when first needed, which for a request that wants nothing of us is never."""
        ids = self.request.prompt_token_ids
        # Three times as fast as numpy's own way from a list: 32,000 ids are a millisecond on the scheduler's thread.
        array = np.fromiter(ids, np.int32, len(ids))
        array.flags.writeable = False
        return as_token_ids(array)

    def taint(self, first_approximate: int, block_size: int) -> None:
        """Give the blocks from ``first_approximate`` on keys that only this request knows.

        vLLM publishes blocks under the hashes it finds here, and later hashes grow from earlier ones, so what is
        generated after approximate KV is tainted too.
        """
        hashes = self.request.block_hashes
        if self._true_hashes is None:
            self._true_hashes = list(hashes)
        first = first_approximate // block_size
        if first < len(hashes):
            # Random, not made of the request's id: clients choose those, and may choose one twice.
            size = len(hashes[first])
            random = os.urandom(size * (len(hashes) - first))
            hashes[first:] = [random[at : at + size] for at in range(0, len(random), size)]
        self.approximate_from = first_approximate

    def untaint(self) -> None:
        """Back to the true hashes: nothing approximate was written after all."""
        assert not self.ordered, "what was loaded approximately can never be published under its true hashes"
        if self._true_hashes is not None:
            # Hashes of generated tokens go too: they grew from tainted ones, and vLLM makes them again.
            self.request.block_hashes[:] = self._true_hashes
        self._true_hashes, self.approximate_from = None, None

    def start_over(self) -> None:
        """Its blocks were given back, with all that was loaded or computed in them: it is an ordinary request now."""
        self.claim, self.ordered, self.captured = None, False, False
        self.untaint()


def is_all_tokens(request: Any) -> bool:
    """Not so where a part of the prompt is no tokens, such as embeddings or images."""
    embeds = getattr(request, "prompt_embeds", None)
    return request.prompt_token_ids is not None and embeds is None and not request.mm_features
