"""What SemBlend does at each of SGLang's calls.

Runs on the scheduler's thread. Nothing raises into the engine: what fails is prefilled, and counted with its reason.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

from torch import OutOfMemoryError, Tensor

from semblend_core import AuditSink, DeclineReason, ProbeEnd, SelfTestResult, SemanticLookupProvider, Settings
from semblend_core.serving import (
    Claim,
    CostGate,
    Finding,
    Namespaces,
    QualityGuard,
    RoundTime,
    Seeker,
    SelfTest,
    Stage,
    Tenants,
    contain,
    contained,
    may_share,
)
from semblend_core.serving.tree import ExactTree, KeptDonors, SlotPool
from semblend_sglang.scheduler.capturing import Capturing
from semblend_sglang.scheduler.comparing import Comparing, ScoredLife, Served
from semblend_sglang.scheduler.continuing import MOST_REPEATED, Continuing
from semblend_sglang.scheduler.fitting import BatchLimits, Fitting
from semblend_sglang.scheduler.landing import Landing
from semblend_sglang.scheduler.new_weights import NewWeights
from semblend_sglang.scheduler.operator_commands import OperatorCommands
from semblend_sglang.scheduler.ranked_decisions import Decisions
from semblend_sglang.scheduler.ranked_donors import RankedDonors, donors_of
from semblend_sglang.scheduler.ranked_loading import loading_of
from semblend_sglang.scheduler.ranks import Ranks
from semblend_sglang.scheduler.repeats import Repeats
from semblend_sglang.scheduler.requests import Asked, SglangLife, SglangRequests

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

MOST_POSTPONEMENTS = 2
"""Rounds that a request waits for more room for its rows, or for another try: who stands behind it waits too."""


class Side:
    """Knows SGLang's requests by their lives. A request that has none, as another goes by its id, is left alone."""

    def __init__(
        self,
        provider: SemanticLookupProvider,
        settings: Settings,
        tree: ExactTree,
        pool: SlotPool,
        limits: BatchLimits,
        namespaces: Namespaces,
        kept: KeptDonors | None = None,
        costs: CostGate | None = None,
        audit: AuditSink | None = None,
        guard: QualityGuard[Served] | None = None,
        ranks: Ranks | None = None,
        *,
        correcting: bool = True,
    ) -> None:
        """``costs``: judges plans by the batches it is told of; without it every plan is taken.

        ``ranks``: where there are several. Only the first of them asks its provider. ``correcting``: whether KV that
        was moved is corrected inside the forward.
        """
        self.ranks = ranks
        self.costs = costs or CostGate(Settings(cost_gate=False), step_tokens=0)
        self.provider, self.settings, self.tree, self.pool, self.limits = provider, settings, tree, pool, limits
        self.donors = donors_of(ranks, provider, settings, tree, pool, kept, self.costs.prefill_ms)
        self._loading = loading_of(ranks, tree, pool, self.donors, self.costs)
        self.requests = SglangRequests(
            namespaces,
            lambda outcome: provider.report_outcome(outcome),
            self._loading.stop_fetching,
            *(() if ranks is None else (ranks.monotonic,)),
        )
        self.self_test = SelfTest(
            1 if ranks is None else ranks.size,
            lambda found: contain("noting the self-test", provider.note_self_test, found),
        )
        self.capturing = Capturing(
            settings, self.requests, self.donors, pool, self.self_test, tree.page_size, self._has_shown
        )
        self.landing = Landing(self.requests, pool.token_bytes, wait=ranks is not None)
        self.guard = guard or QualityGuard(settings, audit)

        def count_background(tokens: int) -> None:
            provider.note_background(tokens)

        ages = self.donors if isinstance(self.donors, RankedDonors) else self.donors.book
        self.continuing = Continuing(
            *(tree, settings, self.self_test, ages.born, count_background, self.guard.trusts),
            *(() if ranks is None else (ranks.time,)),
        )
        self.lineages, self.background = self.continuing.lineages, self.continuing.background
        self.comparing = Comparing(self.guard, tree, self.lineages, self.requests, count_background)
        probe_layers = pool.probe_layers if correcting else None
        self._fitting = Fitting(settings, limits, tree.page_size, self.costs, probe_layers, self.guard.ask, correcting)
        self._seeker = Seeker(
            provider,
            self.requests,
            self.donors.book,
            self.self_test,
            self._fitting.claim_for,
            self.donors.drop_missing,
            self.donors.are_of_same_tokens,
            costs=self.costs,
        )
        holders = (self.donors, self.lineages, self.continuing.hot, self.guard)
        self._tenants = Tenants(provider, lambda: self.requests, holders, audit, now=time.perf_counter)
        self.operator = OperatorCommands(
            self._tenants, self.requests, kept, self.changed, self.capturing.catch_up, at_all_ranks=ranks is not None
        )
        self._decisions: Decisions | None = None
        if ranks is not None:
            assert isinstance(self.donors, RankedDonors)
            self._decisions = Decisions(ranks, self.requests, self.donors, self._decide, self.continuing.find)
            ranks.on(SelfTestResult, lambda rank, found: self._hear(rank, found))
        self.on_change: Callable[[], None] = lambda: None
        """Called after outcomes were reported, to bring the metrics up to date."""
        self.new_weights = NewWeights(self.requests, self.donors, self.continuing, self.capturing, self.guard, ranks)
        self._lookups = Repeats(MOST_REPEATED)
        self.round = RoundTime(settings.lookup_budget_ms / 1e3)

    # --- A waiting request: asked in every round until it is admitted ------------------------------------------------

    def match(self, asked: Asked) -> SglangLife | None:
        """The request, if it may count on more than its exact prefix: on what lies in place, and on a claim behind."""
        try:
            return self._match(asked)
        except Exception:
            logger.exception("no reuse for %s", asked.request.rid)
            life = self.requests.of_request(asked.request)
            if life is not None:
                contain("declining a request", self.requests.decline, life, DeclineReason.INTERNAL_ERROR)
            return None

    def was_not_asked_about(self, request: Any) -> bool:
        """Whether this round had no time left for it: it is computed when it is known what it reuses."""
        life = self.requests.of_request(request)
        return life is not None and life.is_open and life.unasked

    def promised(self, request: Any) -> SglangLife | None:
        """The life of a request that may count on a claim, on what lies in place, or on both."""
        life = self.requests.of_request(request)
        return life if life is not None and life.is_open and (life.claim or life.in_place) else None

    def claimed(self, request: Any) -> SglangLife | None:
        """The life of a request that may count on a claim."""
        life = self.requests.of_request(request)
        return life if life is not None and life.stage is Stage.CLAIMED else None

    def arrival(self, life: SglangLife) -> Literal["there", "coming", "given up"]:
        """Whether what was claimed for a request can be moved now, or will be soon. Otherwise it is served cold."""
        return self._or_decline(self._loading.arrival, life) or "given up"

    def may_wait(self, life: SglangLife) -> bool:
        """Whether a request that did not get what it claims in this round is worth another."""
        return life.postpone(MOST_POSTPONEMENTS)

    def give_up(self, life: SglangLife, reason: DeclineReason) -> None:
        """Its spans are not to be had. What lies in place is; without that it is served cold."""
        if life.in_place is None:
            self.requests.decline(life, reason)
        elif life.stage is Stage.CLAIMED:
            asked = life.question
            self.requests.withdraw(life)
            life.question = asked  # The same would be found again.

    def leave_queue(self, request_id: str) -> None:
        self.requests.leave_queue(request_id)
        self.changed()

    # --- Admission ---------------------------------------------------------------------------------------------------

    def admit(self, life: SglangLife) -> Tensor | None:
        """Private slots of the whole claim, filled with what is reused; None: the request computes that."""
        loaded = self._or_decline(self._loading.load, life)
        if loaded is None:
            return None
        self.requests.load(life)
        self.landing.loads[life] = loaded
        life.approximate_from = life.first_span if life.in_place is None else life.in_place.start
        self.lineages.grow(life)
        return loaded.slots

    def withdraw(self, life: SglangLife) -> None:
        """SGLang did not take the request after all: it asks again in the next round, but does not copy for ever."""
        life.restore_insert()
        self.lineages.release(life)
        loaded = self.landing.loads.pop(life, None)
        if loaded is not None:
            self.tree.free(loaded.slots)
            self.requests.take_back(life)
            if not self.may_wait(life):
                self.give_up(life, DeclineReason.ALLOCATION_FAILED)

    def admitted(self, request: Any) -> None:
        """SGLang took the request, with or without reuse."""
        life = self.requests.of_request(request)
        if life is None:
            return
        self._loading.stop_fetching(life)
        self._lookups.one_less_in_front()
        in_place = self.continuing.admitted(life)
        if in_place is not None and life.is_queued:
            self.give_up(life, DeclineReason.ALLOCATION_FAILED)
            self.requests.take_in_place(life, in_place.length)
            life.approximate_from = in_place.start
        elif life.is_queued:
            self.requests.withdraw(life)
            self.requests.serve_without(life, Stage.COLD, self.self_test.why_not)
            self.requests.compute(life)

    # --- The forward -------------------------------------------------------------------------------------------------

    def probe_ended(self, end: ProbeEnd) -> None:
        self.provider.note_probe(end)
        self._fitting.probes.ended(end)

    def rows_failed(self, requests: Iterable[Any], fault: Exception | None) -> None:
        """No forward could be made with the rows of these: they compute their claims. Where it is not for want of
        memory, nothing is loaded again. ``fault``: None where another rank had one, and says so itself.
        """
        want_of_memory = isinstance(fault, OutOfMemoryError)
        reason = DeclineReason.ALLOCATION_FAILED if want_of_memory else DeclineReason.INTERNAL_ERROR
        for request in requests:
            self.landing.fail(request, reason)
        if fault is not None and not want_of_memory:
            self.give_up_reuse("SGLang's batch could not be made with rows")

    @contained
    def forward_ended(self, correcting: bool, fault: str | None) -> None:
        """A forward has computed rows. ``correcting``: what was moved was to be corrected; ``fault``: why it was not.

        What one rank could not correct counts at none, or they would not keep the same.
        """
        self.landing.forward_ended(corrected=not correcting or self.all_can(fault is None))
        if fault is not None:
            self.give_up_reuse(fault)

    def give_up_reuse(self, why: str) -> None:
        """A forward was not what a claim counts on: nothing is loaded again."""
        logger.error("%s. SemBlend only looks from now on", why)
        self.refuse(why)
        self.changed()

    def refuse(self, why: str) -> None:
        """Nothing is loaded from now on, or as soon as all ranks have heard of it."""
        self._has_shown(SelfTestResult.refused(why))

    def all_can(self, can: bool) -> bool:
        """Whether every rank can, where there are several."""
        return can if self.ranks is None else self.ranks.all_can(can)

    # --- What SGLang's own cache took --------------------------------------------------------------------------------

    def may_keep(self, life: SglangLife) -> bool:
        """Whether what an approximate request has computed is fit to go on from: what it reused has landed."""
        self.landing.confirm()
        return life.stage is Stage.REUSING and not life.purged

    def released(self, request: Any) -> None:
        """The request's memory is given back: it has finished, was aborted, or was retracted and will be computed."""
        self.landing.confirm()
        life = self.requests.of_request(request)
        if life is not None:
            self.comparing.note(life)
            self.lineages.release(life)
            never_started = self.landing.take(request) is not None  # Its slots go back with its row.
            self.requests.end(life, loading=not never_started)
            if never_started and request.output_ids:
                # A hook is not called, so nothing may be reused.
                self.give_up_reuse(f"SGLang computed {life.request_id} without its rows")
        self.changed()

    def close(self) -> None:
        contain("keeping the costs", self.costs.close)
        contain("the provider's close", self.provider.close)
        if self.donors.kept is not None:
            self.donors.kept.close()

    def check_integrity(self) -> None:
        """Raise AssertionError where the books do not agree. Between requests nothing may be left."""
        self.provider.check_integrity()
        self.lineages.shadow.check_integrity()
        self.landing.check_integrity()

    def changed(self) -> None:
        """Bring the metrics up to date."""
        contain("the metrics", self.on_change)

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _match(self, asked: Asked) -> SglangLife | None:
        self.capturing.catch_up()
        life = self.requests.follow(asked, lambda life: contain("meeting a request", self._meet, life))
        if life is None:
            return None
        if isinstance(life, ScoredLife):
            return life if life.is_open and self.comparing.match(life, asked) else None
        why_alone = self._why_alone(life, asked)
        if why_alone is not None and life.is_queued:
            life.finding = life.finding or Finding(False)  # So that it is counted.
            self.requests.decline(life, why_alone)
        if not life.is_open:
            return None
        if asked.unsettled:
            self.requests.withdraw(life)
            life.in_place = None
            life.finding = Finding(False, DeclineReason.EXACT_PREFIX_ELSEWHERE)
            return None
        if self._decisions is None:
            self._decide(life, asked.exact_tokens)
        else:
            proved = self.self_test.passed
            self._decisions.decide(life, asked.exact_tokens)
            if self.self_test.passed != proved:  # So the ranks have just heard from each other.
                self._decisions.decide(life, asked.exact_tokens)
        return self.promised(asked.request)

    def _decide(self, life: SglangLife, exact_tokens: int) -> None:
        if self.round.is_up and life.question is None and life.claim is None:
            life.unasked = True
            return
        life.unasked = False
        with self.costs.apart(), self.round.spending():
            life.in_place = self.continuing.find(life, exact_tokens)
            reach = exact_tokens if life.in_place is None else life.in_place.end
            if not life.retracted:
                self._seeker.seek(life, reach, self._may_ask)

    def _has_shown(self, found: SelfTestResult) -> None:
        """What prompts, or a failure, have shown at this rank. Where there are others, all hear of it together."""
        if self.ranks is None:
            self._hear(0, found)
        else:
            self.ranks.tell(found)

    def _hear(self, rank: int, found: SelfTestResult) -> None:
        if self.self_test.hear({rank: found}):
            self.donors.book.generation += 1  # What was found and not loaded may be asked for again.

    def _meet(self, life: SglangLife) -> None:
        self._tenants.meet(life, life.request.time_stats.wait_queue_entry_time or time.perf_counter())
        if may_share(self.settings, life.namespace):
            self.donors.meet(life)

    def _why_alone(self, life: SglangLife, asked: Asked) -> DeclineReason | None:
        """Why a request neither takes nor gives."""
        if not may_share(self.settings, life.namespace):
            return DeclineReason.NO_SALT
        return None if asked.unsupported is None else DeclineReason.UNSUPPORTED_REQUEST

    def _or_decline(
        self, attempt: Callable[[SglangLife, Claim], Result | DeclineReason], life: SglangLife
    ) -> Result | None:
        """What ``attempt`` makes of the claim of ``life``; None where it declines or raises: it is served cold then."""
        assert life.claim is not None
        try:
            result = attempt(life, life.claim)
        except Exception:
            logger.exception("no reuse for %s", life.request_id)
            result = DeclineReason.INTERNAL_ERROR
        if not isinstance(result, DeclineReason):
            return result
        self.give_up(life, result)
        return None

    def _may_ask(self, life: SglangLife) -> bool:
        first = life.question is None
        return (first or not self.round.is_up) and self._lookups.may_ask(first, self.donors.book.generation)
