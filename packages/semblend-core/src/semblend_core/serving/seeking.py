"""From a waiting request to its claim."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Generic

from semblend_core.contract import DeclineReason, Glimpse, LookupRequest, Plan, SemanticLookupProvider
from semblend_core.serving.claims import Claim
from semblend_core.serving.cost_gate import CostGate
from semblend_core.serving.donors import DonorBook
from semblend_core.serving.life import Finding, Stage
from semblend_core.serving.requests import Life, RequestBook
from semblend_core.serving.self_test import SelfTest

MOST_ATTEMPTS = 4
"""Lookups for one request in one round: each finds some donor gone, and the next does without it."""

LEAST_OF_A_PLACE = 128
"""Tokens. Where places are shorter on average, a glimpse may have seen phrases that no span is made of."""
KEPT_ONE_IN = 8
"""On average, of prompts that a glimpse finds covered: where reuse from many places does not pay, that from one may.
And what the glimpse saw may be gone by now."""


class Seeker(Generic[Life]):
    """Asks the provider, and the adapter what its engine can make of the answer."""

    def __init__(
        self,
        provider: SemanticLookupProvider,
        requests: RequestBook[Life],
        donors: DonorBook[Any],
        self_test: SelfTest,
        claim_for: Callable[[Life, Plan], Claim | DeclineReason],
        drop_missing: Callable[[Life, Plan], bool] = lambda life, plan: False,
        is_sound: Callable[[Life, Plan], bool] = lambda life, plan: True,
        costs: CostGate | None = None,
        draw: Callable[[], float] | None = None,
    ) -> None:
        """``claim_for``: what this engine makes of a plan, or why nothing. ``costs``: tells whether a lookup may pay,
        and is told what came of it.

        ``drop_missing``: forget those donors of a plan whose KV is gone; whether there were any. Only for engines whose
        donors go without a word. ``is_sound``: whether the plan reuses what it says, which is asked last.
        ``draw``: a number from 0 to 1.
        """
        self.provider, self._requests, self._donors, self._self_test = provider, requests, donors, self_test
        self._claim_for, self._costs = claim_for, costs
        self._drop_missing, self._is_sound = drop_missing, is_sound
        self._draw = random.Random(0).random if draw is None else draw

    def seek(self, life: Life, exact_tokens: int, may_ask: Callable[[Life], bool] = lambda life: True) -> Claim | None:
        """The claim of a request that is open, behind ``exact_tokens`` of the engine's own; made when there is none.

        The question is asked once for as long as neither the donors nor the exact prefix change. ``may_ask``: asked
        before a lookup, for engines that limit them.
        """
        self._donors.drop_expired()
        # What was claimed before a self-test failed must not be loaded after it.
        stands = life.claim is None or (life.claim.start == exact_tokens and self._self_test.passed)
        if not stands:
            self._requests.withdraw(life)
        question = (self._donors.generation, exact_tokens)
        if life.stage is Stage.WAITING and life.question != question and may_ask(life):
            if life.question is None and self._costs is not None:
                self._costs.forget(life.request_id)
            life.question = question
            claim = self._find(life, exact_tokens)
            if claim is not None:
                self._requests.claim(life, claim)
        return life.claim

    def _find(self, life: Life, exact_tokens: int) -> Claim | None:
        request = self._request(life, exact_tokens)
        if isinstance(request, Finding):
            life.finding = request
            return None
        life.finding = Finding(False, DeclineReason.INTERNAL_ERROR)  # Until the lookup has said something else.
        for _ in range(MOST_ATTEMPTS):
            result = self.provider.lookup(request)
            covered = 0 if result.plan is None else result.plan.covered_tokens
            plan = result.loadable_plan
            life.finding = Finding(result.plan is not None, result.reason, covered, loadable=plan is not None)
            if life.wish.mode != "on":
                return None
            if plan is None and self._costs is not None:
                self._costs.found_nothing()
            if plan is None or not self._self_test.passed:
                return None
            claim = self._claim_for(life, plan)
            # Each donor takes a while to ask for, and what does not pay shall cost nothing.
            if claim is not DeclineReason.DOES_NOT_PAY and self._drop_missing(life, plan):
                if self._costs is not None:
                    self._costs.donors_gone(life.request_id)
                continue
            if isinstance(claim, Claim):
                if self._is_sound(life, plan):
                    return claim
                claim = DeclineReason.INTERNAL_ERROR
            life.finding = Finding(False, claim, covered)
            return None
        life.finding = Finding(False, DeclineReason.DONOR_EVICTED)
        return None

    def _request(self, life: Life, exact_tokens: int) -> LookupRequest | Finding:
        """What to ask the provider, or why that is not worth its time."""

        def request(glimpse: Glimpse | None = None) -> LookupRequest:
            return LookupRequest(life.request_id, life.namespace, life.token_ids, exact_tokens, glimpse=glimpse)

        if life.wish.mode != "on" or self._costs is None:
            return request()
        seen: list[Glimpse | None] = [None]

        def glimpse() -> Glimpse | None:
            seen[0] = self.provider.glimpse(request())
            return seen[0]

        behind = len(life.prompt) - exact_tokens
        if self._costs.may_pay(behind, glimpse):
            return request(seen[0])
        if seen[0] is None:
            return Finding(False, DeclineReason.DOES_NOT_PAY)
        reason = DeclineReason.DOES_NOT_PAY if seen[0].places else DeclineReason.NO_SPANS
        covered = int(seen[0].share * behind)  # Mostly not to be kept once more, whatever it takes to reuse it.
        if covered < LEAST_OF_A_PLACE * seen[0].places or self._draw() < 1 / KEPT_ONE_IN:
            covered = 0
        return Finding(False, reason, covered)
