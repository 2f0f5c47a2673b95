"""The scheduler's half, at each of vLLM's calls."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from semblend_core import (
    AuditSink,
    DeclineReason,
    LoadAdvertised,
    ProbeEnd,
    SemanticLookupProvider,
    Settings,
    TenantReport,
    tenant_of_salt,
)
from semblend_core.recompute import Scores
from semblend_core.serving import (
    ANSWER_TOKENS,
    CaptureOrder,
    Claim,
    CorrectionOrder,
    CostGate,
    DonorKeeper,
    HotOpenings,
    Landed,
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
    token_ids_of,
)
from semblend_vllm.compat.scheduling import show_as_found, waits_with_blocks
from semblend_vllm.neighbour import Neighbour
from semblend_vllm.scheduler.admission import Admission
from semblend_vllm.scheduler.lineages import Lineages
from semblend_vllm.scheduler.long_claims import LongClaims, corrected
from semblend_vllm.scheduler.requests import Follower, Served, VllmRequest
from semblend_vllm.scheduler.turn import in_turn

logger = logging.getLogger(__name__)


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
        self.self_test = SelfTest(ranks, lambda found: self.provider.note_self_test(found))
        self.keeper = DonorKeeper(provider, settings, self.self_test, ranks, audit, costs.prefill_ms)
        self.requests: RequestBook[VllmRequest] = RequestBook(
            lambda outcome: self.provider.report_outcome(outcome), lambda life: self.admission.give_back(life)
        )
        lineages = LineageBook(settings.max_age_s, self.keeper.donors.born, self.guard.trusts)
        self.lineages = Lineages(block_size, lineages)
        self.long_claims = LongClaims(self._probe_ended)
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
        self._to_purge: list[str] = []
        """Tenants that no step has told the workers of."""
        self._loads: dict[str, tuple[LoadOrder, CorrectionOrder | None]] = {}
        """Of admitted requests that no step has computed yet."""
        self._weights = 0
        """How often they have changed."""
        self._failed: list[VllmRequest] = []
        """Requests whose load did not come: their blocks hold nothing of use."""

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
        if life.over_steps:
            self.long_claims.begin(life, claim, load)
            if self.admission.room is not None:
                self.admission.room.hold_place()
        else:
            self._loads[life.request_id] = (load, corrected(load, claim, claim.rows))
        if self._audit is not None:
            spans = len(claim.spans)
            self._audit.emit(
                LoadAdvertised(request_id=life.request_id, namespace=life.namespace, tokens=reused, spans=spans)
            )

    @in_turn
    def put_into(self, work: StepWork, scheduled: dict[str, int], block_ids_of: Callable[[str], list[int]]) -> None:
        """What the workers do in the step that computes ``scheduled`` tokens per request."""
        work.weights, work.computes = self._weights, bool(scheduled)
        work.purge, self._to_purge = self._to_purge, []
        for request_id in [each for each in self._loads if each in scheduled]:
            load, correction = self._loads.pop(request_id)
            work.loads.append(load)
            work.corrections += [] if correction is None else [correction]
        self._add_long_claims(work, scheduled)
        if self.admission.fetch_orders is not None:
            self.admission.fetch_orders.put_into(work)
        self._add_captures(work, scheduled, block_ids_of)
        work.copied = self.keeper.take_copied()
        work.forget = self.keeper.take_forgotten()  # Last: what is captured may cost its tenant's oldest their place.

    def claims_in(self, work: StepWork) -> list[tuple[VllmRequest, Claim]]:
        """The requests of this step whose rows must be computed in it."""
        chosen = [self.requests.get(load.request_id) for load in work.loads]
        found = [(each, each.claim) for each in chosen if each is not None and each.claim is not None]
        return [(life, claim) for life, claim in found if not life.over_steps]

    def first_approximate(self, request: Any) -> int | None:
        """The position from which on the request's KV is approximate, or is about to be; None: all is exact."""
        life = self.requests.get(request.request_id)
        return None if life is None else life.approximate_from

    def take_failed(self) -> list[VllmRequest]:
        """Requests that must be computed from their exact prefix on: what they count on never came."""
        failed, self._failed = self._failed, []
        return [life for life in failed if life.stage is not Stage.ENDED]

    @contained
    @in_turn
    def finished(self, request_id: str) -> None:
        """The request has ended, in whatever state it was."""
        # Of what no step was to compute nothing will be told that counts.
        settled = self._loads.pop(request_id, None) is not None or request_id in self.long_claims
        self.long_claims.end(request_id)
        self.requests.end_refused(request_id)
        life = self.requests.get(request_id)
        if life is not None:
            self._note_opening(life)
            self._note_answer(life)
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
                self._load_failed(life.request_id, DeclineReason.DONOR_EVICTED)

    # --- What an operator asks ---------------------------------------------------------------------------------------

    def purge(self, salt: str | None) -> TenantReport:
        """Drop all that came with this salt, and wait until it is gone: what there was. Any thread.

        Requests under way are served to their end and leave nothing. Workers in other processes drop their part at
        the beginning of the next step.
        """
        tenant = tenant_of_salt(salt)
        return self.purge_tenant(tenant) + self._neighbour.purge(tenant)

    def purge_tenant(self, tenant: str) -> TenantReport:
        """The same for this half alone."""
        with self.turn:
            found = self.tenants.begin_purge(tenant)
            self._to_purge.append(tenant)  # Also for what a step under way is about to capture.
        self.tenants.finish_purge()
        return found

    def held_by(self, salt: str | None) -> TenantReport:
        """What is held of all that came with this salt, here and by a worker in this process. Any thread."""
        tenant = tenant_of_salt(salt)
        return self.show_tenant(tenant) + self._neighbour.held_by(tenant)

    def show_tenant(self, tenant: str) -> TenantReport:
        """The same for this half alone."""
        with self.turn:
            return self.tenants.held_by(tenant)

    # --- What the workers say ----------------------------------------------------------------------------------------

    @contained
    @in_turn
    def hear(self, news: WorkerNews) -> None:
        for request_id, reason in news.failed.items():  # First: what follows may fail, and these must not be lost.
            self._load_failed(request_id, reason)
        for request_id, landed in news.landed.items():
            life = self.requests.get(request_id)
            if life is not None and request_id not in news.failed:
                self._landed(life, landed)
        for request_id, scores in news.scores.items():
            self._choose_rows(request_id, scores)
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
        for probe in work.probes:
            self._choose_rows(probe.request_id, None)
        for done in self.long_claims.take_computed(work):
            if done.landed is not None:
                # Rows that a probe chose are known since it landed: how many tokens it stands for, too.
                self._confirm(done.life, replace(done.landed, tokens=done.claim.reused_tokens))

    def close(self) -> None:
        contain("keeping the costs", self.costs.close)
        self.provider.close()

    @property
    def expects_news(self) -> bool:
        """Whether workers must hear something, or will soon have something to tell, that no request waits for."""
        elsewhere = not self._neighbour.is_here and (self.keeper.captures.any_coming or self.keeper.any_forgotten)
        return bool(self._to_purge) or elsewhere

    def check_integrity(self) -> None:
        self.provider.check_integrity()
        self.keeper.captures.check_integrity()
        for request_id in self._loads:
            life = self.requests.get(request_id)
            assert life is not None, "a load is ordered for a request that is gone"
            assert life.stage is Stage.LOADING, f"a load is ordered for a request that is {life.stage}"

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

    def _note_opening(self, life: VllmRequest) -> None:
        """When a request is done with, and nobody waits for its first token: many may ask for what it began with."""
        if life.purged or life.stage not in (Stage.LOADING, Stage.REUSING):
            return
        if life.taken is not None:
            self.hot.note(life.taken.lineages, life.token_ids, life.taken.end, life.like)
        if life.lineage is not None:
            self.hot.note([life.lineage], life.token_ids, 0, life.like)

    @contained
    def _note_answer(self, life: VllmRequest) -> None:
        """A share of the answers with reuse is compared with cold ones."""
        lineage, most = life.served_of, min(ANSWER_TOKENS, self.longest_compared - len(life.prompt))
        if most < 1 or lineage is None or not self.guard.wants(lineage):
            return
        served = Served.of(life, self.lineages.block_size)
        if served is not None:
            answer = token_ids_of(list(life.request.output_token_ids[:most]))
            self.guard.add(life.request_id, life.namespace, life.token_ids, answer, lineage, served)

    def _load_failed(self, request_id: str, reason: DeclineReason) -> None:
        life = self.requests.get(request_id)
        if life is None:
            return
        self.lineages.failed(life)
        # One that has started over already may hear of its old load again. Without room for rows vLLM itself computes
        # what did not come.
        if life.stage in (Stage.LOADING, Stage.REUSING) and self.admission.room is not None:
            self._failed.append(life)
        self.requests.decline(life, reason)

    def _landed(self, life: VllmRequest, landed: Landed) -> None:
        under_way = self.long_claims.under_way(life)
        if under_way is None:
            self._confirm(life, landed)
        else:  # Nobody counts on it, or goes on from it, before its rows are computed.
            under_way.landed = landed

    def _confirm(self, life: VllmRequest, landed: Landed) -> None:
        in_place = 0 if life.taken is None else life.taken.tokens
        self.requests.confirm(life, landed.tokens + in_place, landed.bytes)
        self.lineages.landed(life)

    def _choose_rows(self, request_id: str, scores: Scores | None) -> None:
        """A probe has shown where the question looks; None: it has shown nothing, and the tier's other rows stand."""
        probed = self.long_claims.probed(request_id)
        if probed is None or probed.life.stage is not Stage.LOADING:
            return
        life, claim, end = probed.life, probed.claim.unprobed(), ProbeEnd.FAILED
        if scores is not None:
            chosen = contain("choosing rows by a probe", self.admission.choose, life, probed.claim, scores)
            claim, end = (claim, end) if chosen is None else (chosen, ProbeEnd.CHOSE)
        life.claim = claim
        if not life.purged:  # Nobody shall find what it leaves.
            self.lineages.regrow(life, claim)
        self.long_claims.settle(probed, claim, end)

    def _probe_ended(self, end: ProbeEnd) -> None:
        self.provider.note_probe(end)
        self.admission.probes.ended(end)

    def _add_long_claims(self, work: StepWork, scheduled: dict[str, int]) -> None:
        """Their next rows take what this step has left. While vLLM pauses it has nothing."""
        room = self.admission.room
        if room is not None:
            rows = [row for _, claim in self.claims_in(work) for row in claim.rows]
            tokens = sum(scheduled.values()) + sum(end - start for start, end in rows)
            places = room.most_sequences - room.held_sequences() - len(rows)
            most_tokens = 0 if room.is_paused() else room.most_tokens - tokens
            self.long_claims.add_work(work, most_tokens, places)
            for life in self.long_claims.overdue():
                self._load_failed(life.request_id, DeclineReason.ALLOCATION_FAILED)

    @contained
    def _add_captures(
        self, work: StepWork, scheduled: dict[str, int], block_ids_of: Callable[[str], list[int]]
    ) -> None:
        for request_id, tokens in scheduled.items():
            life = self.requests.get(request_id)
            if life is None or life.captured or not _completes_prompt(life.request, tokens):
                continue
            blocks = block_ids_of(request_id)  # First: what is decided must be ordered.
            kept = self.keeper.decide(life)
            if kept is not None:
                order = CaptureOrder(kept.donor_id, life.namespace, blocks, kept.token_ids, kept.saved_ms)
                work.captures.append(order)


def _completes_prompt(request: Any, tokens: int) -> bool:
    return bool(request.num_computed_tokens + tokens >= request.num_prompt_tokens)
