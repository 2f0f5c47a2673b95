"""What a waiting request may count on: the first rank finds out, and the others follow."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from semblend_core.serving import Claim, Finding, Stage
from semblend_core.serving.tree import InPlace
from semblend_sglang.scheduler.ranked_donors import Noted, RankedDonors
from semblend_sglang.scheduler.ranks import Ranks
from semblend_sglang.scheduler.requests import SglangLife, SglangRequests

logger = logging.getLogger(__name__)


class UndecidedError(RuntimeError):
    """A rank could not decide, or could not follow: the request is served cold by all."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the first rank has found out."""

    unasked: bool
    """It had no time left for this request."""
    claim_changed: bool
    claim: Claim | None
    """Where it changed."""
    in_place_end: int | None
    """Of what lies behind the exact prefix."""
    counts: bool
    """Whether the request may count on something that it could not count on before."""
    finding: Finding | None
    question: tuple[int, int] | None
    first_span: int


class Decisions:
    def __init__(
        self,
        ranks: Ranks,
        requests: SglangRequests,
        donors: RankedDonors,
        decide: Callable[[SglangLife, int], None],
        find_in_place: Callable[[SglangLife, int], InPlace | None],
    ) -> None:
        """``decide``: what one rank alone would do for a waiting request with so many exact tokens.

        ``find_in_place``: the part of it that every rank does by itself, since it finds the same.
        """
        self._ranks, self._requests, self._donors = ranks, requests, donors
        self._decide, self._find_in_place = decide, find_in_place

    def decide(self, life: SglangLife, exact_tokens: int) -> None:
        """Every rank, for the same request. UndecidedError at all of them where one could not."""
        try:
            noted = Noted({}, [])
            mine = self._first(life, exact_tokens, noted) if self._ranks.is_first else None
            noted, decision = self._ranks.exchange((noted, mine))[0]
            follows = self._follow(life, noted, decision, exact_tokens)
            if decision is None:
                raise UndecidedError("the first rank could not decide")
            if decision.counts and not self._ranks.all_can(follows):
                raise UndecidedError("a rank could not follow the first")
        finally:
            self._ranks.deliver()

    def _first(self, life: SglangLife, exact_tokens: int, noted: Noted) -> Decision | None:
        """``noted`` tells what it asked its tree, also where it came to nothing."""
        claim, in_place = life.claim, life.in_place
        try:
            with self._donors.noting(noted):
                self._decide(life, exact_tokens)
        except Exception:
            logger.exception("no reuse for %s", life.request_id)
            return None
        changed = life.claim is not claim
        return Decision(
            life.unasked,
            changed,
            life.claim if changed else None,
            _end_of(life.in_place),
            (changed and life.claim is not None) or (life.in_place is not None and life.in_place is not in_place),
            life.finding,
            life.question,
            life.first_span,
        )

    def _follow(self, life: SglangLife, noted: Noted, decision: Decision | None, exact_tokens: int) -> bool:
        """Whether this rank has come to the same."""
        try:
            if not self._ranks.is_first:
                self._donors.find_as(noted)
            if decision is None:
                return False
            if not self._ranks.is_first:
                self._take_over(life, decision, exact_tokens)
            if decision.claim_changed:
                self._donors.promise(life, noted.paths)
            return _end_of(life.in_place) == decision.in_place_end
        except Exception:
            logger.exception("rank %d cannot follow the first for %s", self._ranks.rank, life.request_id)
            return False

    def _take_over(self, life: SglangLife, decision: Decision, exact_tokens: int) -> None:
        life.unasked = decision.unasked
        if not decision.unasked:
            life.in_place = self._find_in_place(life, exact_tokens)
        if decision.claim_changed:
            if life.stage is Stage.CLAIMED:
                self._requests.withdraw(life)
            if decision.claim is not None:
                self._requests.claim(life, decision.claim)
        life.finding, life.question, life.first_span = decision.finding, decision.question, decision.first_span


def _end_of(in_place: InPlace | None) -> int | None:
    return None if in_place is None else in_place.end
