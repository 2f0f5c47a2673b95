"""One request from its first lookup to its end, as every engine sees it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np

from semblend_core.contract import DeclineReason, Namespace, TokenIds, as_token_ids
from semblend_core.serving.claims import Claim
from semblend_core.serving.wishes import Wish


class Stage(StrEnum):
    """Where a request stands. The first three wait in the engine's queue, the next three are computed."""

    WAITING = "waiting"
    """What it reuses is open."""
    CLAIMED = "claimed"
    """A claim is made for it, which the engine may count on. It can still be withdrawn."""
    DECLINED = "declined"
    """It will be computed without reuse; its outcome is reported."""
    LOADING = "loading"
    """Relocated KV is on its way into its memory. Nothing can be taken back."""
    REUSING = "reusing"
    """The backend confirmed the relocated KV; its outcome is reported."""
    COLD = "cold"
    """It is computed without reuse; its outcome, if it was looked up, is reported."""
    LEAVING = "leaving"
    """The engine has done with it, and its outcome is still to come."""
    ENDED = "ended"


_QUEUED = (Stage.WAITING, Stage.CLAIMED, Stage.DECLINED)
TRANSITIONS: dict[Stage, tuple[Stage, ...]] = {
    # Straight to REUSING: all that it reuses is taken where it lies.
    Stage.WAITING: (Stage.CLAIMED, Stage.DECLINED, Stage.REUSING, Stage.COLD, Stage.ENDED),
    Stage.CLAIMED: (Stage.WAITING, Stage.DECLINED, Stage.LOADING, Stage.ENDED),
    Stage.DECLINED: (Stage.COLD, Stage.ENDED),
    # Back to the queue: the engine did not take it after all, or what was loaded never came.
    Stage.LOADING: (Stage.CLAIMED, Stage.DECLINED, Stage.REUSING, Stage.LEAVING, Stage.ENDED),
    Stage.REUSING: (Stage.DECLINED, Stage.ENDED),
    Stage.COLD: (Stage.ENDED,),
    Stage.LEAVING: (Stage.ENDED,),
    Stage.ENDED: (),
}
"""What may follow what. Everything else is a mistake of the adapter, and raises."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What the last lookup of a request said."""

    found: bool
    """A plan, whether or not it could be loaded."""
    reason: DeclineReason | None = None
    covered_tokens: int = 0
    """Of the prompt, by spans of donors; about so many, where there was no more than a glimpse."""
    loadable: bool = True
    """Of a plan: the provider lets it be loaded."""


@dataclass(eq=False)
class RequestLife:
    """What is remembered of a request between the engine's calls. Adapters add what only their engine knows."""

    request: Any
    """The engine's own object."""
    request_id: str
    namespace: Namespace
    prompt: Sequence[int]
    """All prompt tokens, as the engine keeps them."""
    wish: Wish = field(default_factory=Wish)
    stage: Stage = Stage.WAITING
    claim: Claim | None = None
    """Set from CLAIMED on. It stays while its KV is in use."""
    finding: Finding | None = None
    """None: it was never looked up, so it has no outcome."""
    question: tuple[int, int] | None = None
    """Generation of donors and exact prefix at its last lookup."""
    lost: DeclineReason | None = None
    """Why a donor went that an earlier claim had counted on."""
    postponed: int = 0
    """Steps in which its rows found no room."""
    approximate_from: int | None = None
    """KV from this position on is approximate, or is about to be. None: all of it is exact."""
    captured: bool = False
    """Whether it becomes a donor is decided."""
    counted: bool = True
    """Whether it is traffic. Requests of our own are not: no outcome of theirs is reported."""
    purged: bool = False
    """Its tenant was purged while it was under way: nothing of it is kept, and it takes nothing more."""

    @cached_property
    def token_ids(self) -> TokenIds:
        """Of the prompt. Made when first needed, which for a request that wants nothing of us is never."""
        return token_ids_of(self.prompt)

    def first_tokens(self, count: int) -> TokenIds:
        """Of the prompt: without making all of them, which for a long one takes a while."""
        return self.token_ids[:count] if "token_ids" in self.__dict__ else token_ids_of(self.prompt[:count])

    @property
    def is_queued(self) -> bool:
        return self.stage in _QUEUED

    @property
    def is_open(self) -> bool:
        """Whether it may still be decided what it reuses."""
        return self.stage in (Stage.WAITING, Stage.CLAIMED) and self.wish.mode != "off" and not self.purged

    def go(self, to: Stage) -> None:
        if to not in TRANSITIONS[self.stage]:
            raise AssertionError(f"{self.request_id} cannot go from {self.stage} to {to}")
        self.stage = to

    def postpone(self, most: int) -> bool:
        """Its rows found no room: whether it is worth another round."""
        self.postponed += 1
        return self.postponed <= most


def token_ids_of(prompt: Sequence[int]) -> TokenIds:
    """An engine's list or array of ids as the contract's."""
    if isinstance(prompt, list):
        # Three times as fast as numpy's ways from a list: requests wait for it on the scheduler's thread.
        with suppress(struct.error):
            return as_token_ids(np.frombuffer(struct.pack(f"{len(prompt)}i", *prompt), np.int32))
    return as_token_ids(np.asarray(prompt))
