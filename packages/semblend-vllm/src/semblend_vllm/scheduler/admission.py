"""From a waiting request to the tokens that vLLM may count on for it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from semblend_core import DeclineReason, Plan, SemanticLookupProvider, Settings
from semblend_core.recompute import Scores
from semblend_core.serving import (
    PROBED_RUN,
    Arrival,
    Claim,
    CostGate,
    DonorBook,
    FetchOrders,
    ProbeTrust,
    RequestBook,
    RoundTime,
    Seeker,
    SelfTest,
    Stage,
    claim_by_scores,
    claim_by_tier,
    claim_of,
    contained,
)
from semblend_vllm.scheduler.lineages import Lineages
from semblend_vllm.scheduler.requests import VllmRequest
from semblend_vllm.scheduler.rows import RowRoom

logger = logging.getLogger(__name__)


class Admission:
    def __init__(
        self,
        provider: SemanticLookupProvider,
        settings: Settings,
        block_size: int,
        requests: RequestBook[VllmRequest],
        donors: DonorBook[None],
        self_test: SelfTest,
        lineages: Lineages,
        ranks: int,
        correcting: bool,
        costs: CostGate,
        probe_layers: int | None,
        spending: Callable[[Plan], float | None] = lambda plan: 1.0,
    ) -> None:
        """``spending``: what may be computed of a plan, by its tier's budget; None: it is declined."""
        self._lineages, self._probe_layers, self._spending = lineages, probe_layers, spending
        self.probes = ProbeTrust(settings)
        self._settings, self._block_size, self._correcting = settings, block_size, correcting
        self._requests, self._donors, self._self_test, self._costs = requests, donors, self_test, costs
        self.seeker = Seeker(provider, requests, donors, self_test, self._claim_for, costs=costs)
        slow_tier = settings.store_disk_bytes or settings.store_lmcache_bytes
        self.fetch_orders = FetchOrders(ranks, costs) if slow_tier else None
        """None where every donor lies in memory."""
        self.round = RoundTime(settings.lookup_budget_ms / 1e3)
        """Of a step of our scheduler's."""
        self.room: RowRoom | None = None
        """What a step has for rows; None where our scheduler is not in charge and rows cannot be had."""
        self._unplaced: VllmRequest | None = None
        """It is to wait with blocks in hand, and vLLM has not given it any."""

    def prepare(self, life: VllmRequest, computed_tokens: int) -> Claim | None:
        """Make the claim of an open request, and send for its donors. None while it has none that can be loaded."""
        if self._has_no_time_for(life):
            return None
        claim = self._seek(life, computed_tokens)  # What finds nothing now may find something later.
        return None if claim is None or self._arrival(life, its_turn=False) != "there" else claim

    def claim(self, life: VllmRequest, computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens that vLLM may count on for an open request; None: ask again. And whether it waits for them."""
        if self._has_no_time_for(life):
            return None, False  # So do all behind it who are not known yet.
        claim = self._seek(life, computed_tokens)
        if claim is None:
            if life.taken is None:
                self._requests.serve_without(life, Stage.DECLINED, self._self_test.why_not)
            return 0, False
        try:
            tokens = self._admit(life, claim)
        except Exception:
            self._give_up(life)
            return 0, False
        waits = life.over_steps and bool(tokens)
        self._unplaced = life if waits else None
        return tokens, waits

    def ordered(self, life: VllmRequest) -> None:
        """vLLM took the claim, and its load is ordered."""
        self._unplaced = None
        if self.fetch_orders is not None:
            self.fetch_orders.end(life.request_id, wanted=True)

    @contained
    def end_step(self, blocks_are_freed: Callable[[], bool]) -> None:
        """vLLM has made a step. Who waits with its blocks needs more of them at once than who computes its prompt.

        ``blocks_are_freed``: whether anybody will give some back. Otherwise it would wait for ever.
        """
        unplaced, self._unplaced = self._unplaced, None
        if unplaced is not None and not blocks_are_freed():
            self._requests.decline(unplaced, DeclineReason.ALLOCATION_FAILED)

    def give_back(self, life: VllmRequest) -> None:
        """Its claim does not stand any longer."""
        if self.fetch_orders is not None:
            self.fetch_orders.end(life.request_id, wanted=False)
        life.over_steps = False
        self._lineages.give_back(life)

    def stop_correcting(self, why: str) -> None:
        if self._correcting:
            self._correcting = False
            logger.warning("several places at once are reused by the fast tier only: %s", why)

    def _seek(self, life: VllmRequest, computed_tokens: int) -> Claim | None:
        rest = life.request.num_tokens - computed_tokens
        if life.taken is not None and rest <= self._settings.min_saved_tokens:
            return None  # As in most turns of a conversation: no plan could spare enough behind what is taken.
        try:
            with self._costs.apart(), self.round.spending():
                return self.seeker.seek(life, computed_tokens, self._may_ask)
        except Exception:
            self._give_up(life)
            return None

    def _has_no_time_for(self, life: VllmRequest) -> bool:
        """Whether its first lookup is for the next step. Where our scheduler is not in charge, nobody counts steps."""
        return self._round_is_up and life.question is None and life.claim is None

    def _may_ask(self, life: VllmRequest) -> bool:
        """A request that was asked about before is not asked about again where others have used up the round."""
        return life.question is None or not self._round_is_up

    @property
    def _round_is_up(self) -> bool:
        return self.room is not None and self.round.is_up

    def _claim_for(self, life: VllmRequest, plan: Plan) -> Claim | DeclineReason:
        if self.room is None:  # Steps are timed by our scheduler.
            return self._claim_without_rows(plan)
        return self._costs.choose(
            life.request_id, life.namespace, plan, lambda part, join_within: self._fitting(life, part, join_within)
        )

    def _fitting(self, life: VllmRequest, plan: Plan, join_within: int) -> Claim | DeclineReason:
        """What steps can hold of the plan."""
        assert self.room is not None
        claim = claim_by_tier(
            plan,
            self._settings.quality_tier,
            self._block_size,
            limit=self._settings.recompute_limit,
            correcting=self._correcting,
            join_within=join_within,
            probe_layers=self._probe_layers if self._may_probe(life, plan) else None,
            block=PROBED_RUN,
            spending=self._spending(plan),
        )
        if not isinstance(claim, Claim):
            return claim
        return claim.with_rows(self.room.most_rows_of(plan.prompt_tokens))

    def _may_probe(self, life: VllmRequest, plan: Plan) -> bool:
        """Rows of a step without their request would not count towards vLLM's limit of adapters in a step.

        A step in which every sequence computes one token may run as one graph, and show nothing.
        """
        seen = self._correcting and any(row.length > 1 for row in plan.rows)
        return self.probes.is_on and seen and life.request.lora_request is None

    def choose(self, life: VllmRequest, claim: Claim, scores: Scores) -> Claim:
        """The claim with rows where the question looks, in as many as its place may be held for."""
        assert self.room is not None
        prompt_tokens = len(life.prompt)
        most_rows = self.room.most_chosen_rows(prompt_tokens - claim.start)
        return claim_by_scores(claim, scores, self._block_size, min(most_rows, self.room.most_rows_of(prompt_tokens)))

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
        arrival = self._arrival(life, its_turn=True)
        if arrival == "coming" or self._lineages.are_under_way(life, claim):
            return None
        if isinstance(arrival, DeclineReason):
            return self.without_claim(life, arrival)
        life.over_steps = claim.probing is not None  # Only who waits with blocks can be probed.
        if self.room is not None and not self.room.take(claim) and not life.over_steps:
            cut = self._cut_to_room(life, claim, self.room)
            if cut is None:
                return self.without_claim(life, DeclineReason.ALLOCATION_FAILED)
            life.claim = claim = cut
        self._lineages.grow(life, claim)
        return claim.blocks_for - claim.start

    def _cut_to_room(self, life: VllmRequest, claim: Claim, room: RowRoom) -> Claim | None:
        """As much of a claim as finds room in this step, or over several steps beside others; None: nothing of it."""
        if life.request.lora_request is not None:  # As in ``_may_probe``.
            cut = claim.within(room.tokens, room.sequences, self._block_size)
            return cut if cut is not None and room.take(cut) else None
        life.over_steps = True
        most_rows = room.most_rows_over_steps(life.request.num_tokens - claim.start)
        return claim.within(claim.row_tokens, most_rows, self._block_size)

    def without_claim(self, life: VllmRequest, reason: DeclineReason) -> int:
        if life.taken is None:
            self._requests.decline(life, reason)
        else:
            self._requests.withdraw(life)  # What is taken in place stays.
        return 0

    def _arrival(self, life: VllmRequest, *, its_turn: bool) -> Arrival:
        return "there" if self.fetch_orders is None else self.fetch_orders.arrival(life, its_turn=its_turn)

    def _give_up(self, life: VllmRequest) -> None:
        logger.exception("no reuse for %s", life.request_id)
        self._requests.decline(life, DeclineReason.INTERNAL_ERROR)
