"""The scheduler's half, at each of vLLM's calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from semblend_core import (
    AuditSink,
    DeclineReason,
    LoadAdvertised,
    SemanticLookupProvider,
    Settings,
)
from semblend_core.serving import (
    Claim,
    CostGate,
    DonorKeeper,
    HotOpenings,
    LineageBook,
    LoadOrder,
    QualityGuard,
    RequestBook,
    SelfTest,
    Stage,
    StepWork,
    Tenants,
    WorkerNews,
    contain,
    contained,
    shown_as_cached,
)
from semblend_vllm.compat.scheduling import show_as_found, waits_with_blocks
from semblend_vllm.neighbour import Neighbour
from semblend_vllm.scheduler.admission import Admission
from semblend_vllm.scheduler.landing import Landing
from semblend_vllm.scheduler.leaving import Leaving
from semblend_vllm.scheduler.lineages import Lineages
from semblend_vllm.scheduler.operator_commands import OperatorCommands
from semblend_vllm.scheduler.orders import StepOrders
from semblend_vllm.scheduler.requests import Follower, Served, VllmRequest
from semblend_vllm.scheduler.turn import in_turn


class SchedulerSide:
    """Called on the scheduler's thread only, but for ``purge`` and ``held_by``.

    Nothing raises into the engine: what fails is served cold, and counted.
    """

    def __init__(
        self,
        provider: SemanticLookupProvider,
        settings: Settings,
        block_size: int,
        follow: Follower,
        costs: CostGate,
        neighbour: Neighbour,
        ranks: int = 1,
        correcting: bool = True,
        probe_layers: int | None = None,
        audit: AuditSink | None = None,
        guard: QualityGuard[Served] | None = None,
    ) -> None:
        """``correcting``: whether KV can be corrected inside the forward, and queries seen.

        ``probe_layers``: the model's, where queries meet their keys as they are; None where nothing is probed.
        """
        self.guard = guard or QualityGuard(settings, audit)
        self.longest_compared = 0
        """Tokens of a prompt and its answer, where the scheduler compares answers in the background; 0: it does not."""
        self.settings, self.costs = settings, costs
        self.provider, self._follow, self._neighbour, self._audit = provider, follow, neighbour, audit
        self.may_repeat = follow.may_repeat
        self.self_test = SelfTest(ranks, lambda found: self.provider.note_self_test(found))
        self.keeper = DonorKeeper(provider, settings, self.self_test, ranks, audit, costs.prefill_ms)
        self.requests: RequestBook[VllmRequest] = RequestBook(
            lambda outcome: self.provider.report_outcome(outcome), lambda life: self.admission.give_back(life)
        )
        lineages = LineageBook(settings.max_age_s, self.keeper.donors.born, self.guard.trusts)
        self.lineages = Lineages(block_size, lineages)
        self.hot: HotOpenings[Any] = HotOpenings(settings.exact_after)
        self.admission = Admission(
            provider,
            settings,
            block_size,
            self.requests,
            self.keeper.donors,
            self.self_test,
            self.lineages,
            ranks,
            correcting,
            costs,
            probe_layers,
            self.guard.ask,
        )
        holders = (self.keeper, self.lineages, self.hot, self.guard)
        self.tenants = Tenants(provider, lambda: self.requests, holders, audit)
        self.turn = threading.RLock()
        """Held while vLLM's scheduler is at work, so that other threads can wait for their turn."""
        self._landing = Landing(self.requests, self.lineages, self.admission, lambda end: self.provider.note_probe(end))
        self.long_claims, failed = self._landing.long_claims, self._landing.load_failed
        self._orders = StepOrders(self.requests, self.keeper, self.admission, self.long_claims, failed)
        commands = OperatorCommands(self.tenants, self._orders, neighbour, self.turn)
        self.purge, self.purge_tenant = commands.purge, commands.purge_tenant
        self.held_by, self.show_tenant = commands.held_by, commands.show_tenant
        self._leaving = Leaving(self.hot, self.guard, block_size)
        self._weights = 0
        """How often they have changed."""

    @contained
    @in_turn
    def catch_up(self) -> None:
        """Before a step: hear what a worker in this process has not told yet."""
        news = self._neighbour.take_news()
        if news is not None:
            self.hear(news)
        self.keeper.offer_some()

    # --- vLLM's calls, in the order in which a request meets them ----------------------------------------------------

    def may_plan(self, request: Any) -> bool:
        """Whether it is still open what this request reuses."""
        return self._open(request) is not None

    @contained
    @in_turn
    def look(self, request: Any) -> None:
        """Before vLLM looks for blocks of a waiting request: name them by a lineage, where one has more of them."""
        life = self._open(request)
        if life is not None and life.wish.mode == "on" and self.self_test.passed:
            self.lineages.look(life)
            return
        life = self.requests.get(request.request_id)
        if life is not None and life.is_queued:
            life.untaint()

    def prepare(self, request: Any, computed_tokens: int) -> Claim | None:
        """The claim of a request that may be admitted next, so that room can be kept for its rows."""
        life = self._open(request)
        return None if life is None else self.admission.prepare(life, computed_tokens)

    @in_turn
    def claim(self, request: Any, computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens behind the exact prefix that the engine may count on; None: ask again in the next step.

        And whether the request must wait for them with its blocks in hand.
        """
        known = self.requests.get(request.request_id)
        if known is not None and computed_tokens < known.must_find:
            known.missed = True
            return None, False
        life = self._open(request)
        if life is None:
            return 0, False
        self.lineages.found(life, computed_tokens)
        return self.admission.claim(life, computed_tokens)

    @contained
    @in_turn
    def allocated(self, request: Any, block_ids: list[int], external_tokens: int) -> None:
        life = self.requests.get(request.request_id)
        if life is None:
            return
        if life.stage is Stage.CLAIMED and external_tokens <= 0:
            # The engine found a use for its own cache, or none for ours.
            self.admission.without_claim(life, DeclineReason.ALLOCATION_FAILED)
        if life.stage is Stage.WAITING and life.taken is not None:
            self.requests.take_in_place(life, life.taken.tokens)
            return
        if life.stage is not Stage.CLAIMED:  # vLLM also tells of requests that it resumes.
            self.requests.serve_without(life, Stage.COLD, self.self_test.why_not)
            self.requests.compute(life)
            return
        claim = self.requests.load(life)
        self.admission.ordered(life)
        self.lineages.loading(life)
        tell_engine = self.admission.room is None  # Then vLLM itself computes what does not come, and counts the rest.
        if tell_engine:
            show_as_found(request, shown_as_cached(self.settings, claim.reused_tokens))
        moved, reused = claim.loaded_spans, claim.reused_tokens
        load = LoadOrder(life.request_id, life.namespace, block_ids, moved, reused, tell_engine)
        self._orders.load(life, claim, load)
        if self._audit is not None:
            spans = len(claim.spans)
            self._audit.emit(
                LoadAdvertised(request_id=life.request_id, namespace=life.namespace, tokens=reused, spans=spans)
            )

    @in_turn
    def put_into(self, work: StepWork, scheduled: dict[str, int], block_ids_of: Callable[[str], list[int]]) -> None:
        """What the workers do in the step that computes ``scheduled`` tokens per request."""
        self._orders.put_into(work, scheduled, block_ids_of, self._weights)

    def claims_in(self, work: StepWork) -> list[tuple[VllmRequest, Claim]]:
        """The requests of this step whose rows must be computed in it."""
        return self._orders.claims_in(work)

    def first_approximate(self, request: Any) -> int | None:
        """The position from which on the request's KV is approximate, or is about to be; None: all is exact."""
        life = self.requests.get(request.request_id)
        return None if life is None else life.approximate_from

    def take_failed(self) -> list[VllmRequest]:
        """Requests that must be computed from their exact prefix on: what they count on never came."""
        return self._landing.take_failed()

    @contained
    @in_turn
    def finished(self, request_id: str) -> None:
        """The request has ended, in whatever state it was."""
        settled = self._orders.cancel(request_id)
        self.requests.end_refused(request_id)
        life = self.requests.get(request_id)
        if life is not None:
            self._leaving.note_opening(life)
            self._leaving.note_answer(life, self.longest_compared)
            self.requests.end(life, loading=not settled)
            if life.stage is Stage.ENDED:
                self.lineages.failed(life)

    @contained
    @in_turn
    def reset(self) -> None:
        """vLLM's caches were reset, since the weights changed: no donor is of use any longer."""
        self._weights += 1
        self._follow.new_weights()
        self.give_up_waiting()
        for life in self.requests:  # Its namespace is that of the old weights, and its KV is of new ones too.
            life.wish = replace(life.wish, capture=False)
        self.lineages.clear()
        self.hot.clear()
        self.guard.new_weights()
        self.keeper.forget_all()
        if self._neighbour.is_here:  # Others forget them with the next step.
            self._neighbour.forget(self.keeper.take_forgotten())

    def give_up_waiting(self) -> None:
        """What requests that wait with blocks in hand count on is of no use: as if their loads had failed."""
        for life in list(self.requests):
            if life.stage in (Stage.LOADING, Stage.REUSING) and waits_with_blocks(life.request):
                self._landing.load_failed(life, DeclineReason.DONOR_EVICTED)

    # --- What the workers say ----------------------------------------------------------------------------------------

    @contained
    @in_turn
    def hear(self, news: WorkerNews) -> None:
        self._landing.hear(news)
        if self.self_test.hear(news.self_test):
            self.keeper.donors.generation += 1  # What was found and not loaded may be asked for again.
        if news.no_correction:
            self.admission.stop_correcting(news.no_correction)
        if news.weights > self._weights:  # vLLM has told its workers, and nobody else.
            self.reset()
        self.keeper.recovered(news.recovered)
        for name, ranks in news.durable.items():
            self.keeper.durable(name, ranks)
        for name, why in news.lost.items():
            self.keeper.lost(name, why)
        if self.admission.fetch_orders is not None:
            self.admission.fetch_orders.arrived(news.fetched)

    @contained
    @in_turn
    def step_ended(self, work: StepWork) -> None:
        """All that its workers had to say of a step was heard."""
        self._landing.step_ended(work)

    def forward_ended(self, work: Any) -> float | None:
        """Since when the forward of a step with these orders has ended, if that can be told."""
        return self._neighbour.ended(work) if isinstance(work, StepWork) else None

    def close(self) -> None:
        contain("keeping the costs", self.costs.close)
        self.provider.close()

    @property
    def expects_news(self) -> bool:
        """Whether workers must hear something, or will soon have something to tell, that no request waits for."""
        elsewhere = not self._neighbour.is_here and (self.keeper.captures.any_coming or self.keeper.any_forgotten)
        return self._orders.any_purge or elsewhere

    def check_integrity(self) -> None:
        self.provider.check_integrity()
        self.keeper.captures.check_integrity()
        self._orders.check_integrity()

    # --- Steps -------------------------------------------------------------------------------------------------------

    @contained
    def _open(self, request: Any) -> VllmRequest | None:
        """The request, if it is still open what it reuses."""
        life = self.requests.get(request.request_id)
        if life is None:
            answer = self._follow(request)
            if isinstance(answer, DeclineReason):
                self.requests.refuse(request.request_id, answer)
                return None
            life = answer
            self.requests.add(life)
            self.tenants.meet(life, request.arrival_time)
            self.keeper.meet(life.namespace)
        # One that was preempted is not: what it has, it finds under its own keys.
        return life if life.is_open else None
