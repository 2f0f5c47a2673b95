"""From a waiting request to the tokens that vLLM may count on for it."""

from __future__ import annotations

import logging

from semblend_core import DeclineReason, Plan, SemanticLookupProvider, Settings
from semblend_core.serving import (
    Arrival,
    Claim,
    DonorBook,
    FetchOrders,
    RequestBook,
    Seeker,
    SelfTest,
    Stage,
    claim_by_tier,
    claim_of,
)
from semblend_vllm.scheduler.requests import VllmRequest
from semblend_vllm.scheduler.rows import RowRoom

logger = logging.getLogger(__name__)

MOST_POSTPONEMENTS = 50
"""Steps that a request waits for room for its rows before it is served cold."""


class Admission:
    def __init__(
        self,
        provider: SemanticLookupProvider,
        settings: Settings,
        block_size: int,
        requests: RequestBook[VllmRequest],
        donors: DonorBook[None],
        self_test: SelfTest,
        ranks: int,
        correcting: bool,
    ) -> None:
        self._settings, self._block_size, self._correcting = settings, block_size, correcting
        self._requests, self._donors, self._self_test = requests, donors, self_test
        self.seeker = Seeker(provider, requests, donors, self_test, self._claim_for)
        self.fetch_orders = FetchOrders(ranks) if settings.store_disk_bytes else None
        """None where no donor can lie on disk."""
        self.room: RowRoom | None = None
        """What a step has for rows; None where our scheduler is not in charge and rows cannot be had."""

    def prepare(self, life: VllmRequest, computed_tokens: int) -> Claim | None:
        """Make the claim of an open request, and send for its donors. None while it has none that can be loaded."""
        claim = self._seek(life, computed_tokens)  # What finds nothing now may find something later.
        return None if claim is None or self._arrival(life) != "there" else claim

    def claim(self, life: VllmRequest, computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens that vLLM may count on for an open request; None: ask again. And whether it waits for them."""
        claim = self._seek(life, computed_tokens)
        if claim is None:
            self._requests.serve_without(life, Stage.DECLINED, self._self_test.why_not)
            return 0, False
        try:
            tokens = self._admit(life, claim)
        except Exception:
            self._give_up(life)
            return 0, False
        return tokens, bool(claim.steps) and bool(tokens)

    def ordered(self, life: VllmRequest) -> None:
        """vLLM took the claim, and its load is ordered."""
        if self.fetch_orders is not None:
            self.fetch_orders.end(life.request_id, wanted=True)

    def give_back(self, life: VllmRequest) -> None:
        """Its claim does not stand any longer."""
        if self.fetch_orders is not None:
            self.fetch_orders.end(life.request_id, wanted=False)
        life.untaint()

    def stop_correcting(self, why: str) -> None:
        if self._correcting:
            self._correcting = False
            logger.warning("several places at once are reused by the fast tier only: %s", why)

    def _seek(self, life: VllmRequest, computed_tokens: int) -> Claim | None:
        try:
            return self.seeker.seek(life, computed_tokens)
        except Exception:
            self._give_up(life)
            return None

    def _claim_for(self, life: VllmRequest, plan: Plan) -> Claim | DeclineReason:
        if self.room is None:
            return self._claim_without_rows(plan)
        tier, limit = self._settings.quality_tier, self._settings.recompute_limit
        claim = claim_by_tier(plan, tier, self._block_size, limit=limit, correcting=self._correcting)
        if not isinstance(claim, Claim):
            return claim
        most_tokens, most_rows = self.room.for_rows(plan.prompt_tokens - claim.end)
        # Rows of a step without their request would not count towards vLLM's limit of adapters in a step.
        if life.request.lora_request is None:
            return claim.over_steps(most_tokens, most_rows)
        return claim.within(most_tokens, most_rows, self._block_size) or DeclineReason.ALLOCATION_FAILED

    def _claim_without_rows(self, plan: Plan) -> Claim | DeclineReason:
        """By the connector's own contract: spans that continue the exact prefix."""
        if self._settings.quality_tier == "strict":  # It promises seams, and those are rows.
            return DeclineReason.QUALITY_TIER
        whole = claim_of(plan, self._block_size)
        leading = None if whole is None else whole.within(0, 0, self._block_size)
        return leading or DeclineReason.STRICT_PREFIX_BOUNDARY

    def _admit(self, life: VllmRequest, claim: Claim) -> int | None:
        lost = [self._donors.why_lost(life.namespace, span.donor_id) for span in claim.spans]
        life.lost = next(filter(None, lost), None)
        if life.lost is not None:
            self._requests.withdraw(life)
            return None  # A donor went while the request waited: plan again in the next step.
        arrival = self._arrival(life)
        if arrival == "coming":
            return None
        if isinstance(arrival, DeclineReason):
            self._requests.decline(life, arrival)
            return 0
        if self.room is not None and not claim.steps and not self.room.take(claim):
            if life.postpone(MOST_POSTPONEMENTS):
                return None
            self._requests.decline(life, DeclineReason.ALLOCATION_FAILED)
            return 0
        if life.approximate_from is None:
            life.taint(claim.first_approximate, self._block_size)
        return claim.length

    def _arrival(self, life: VllmRequest) -> Arrival:
        return "there" if self.fetch_orders is None else self.fetch_orders.arrival(life)

    def _give_up(self, life: VllmRequest) -> None:
        logger.exception("no reuse for %s", life.request_id)
        self._requests.decline(life, DeclineReason.INTERNAL_ERROR)
