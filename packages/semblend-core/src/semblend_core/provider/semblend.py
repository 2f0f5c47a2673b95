"""``SemBlend``: the provider that engines run."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from semblend_core.contract import (
    DeclineReason,
    DonorOffer,
    EvictionCause,
    Glimpse,
    InvalidTokenIdsError,
    LookupRequest,
    LookupResult,
    Namespace,
    OfferResult,
    Outcome,
    OutcomeKind,
    Plan,
    ProbeEnd,
    ProviderStats,
    SelfTestResult,
    SelfTestState,
    SemanticLookupProvider,
    SemanticPrefixProvider,
    SemanticPrefixResult,
    TokenIds,
    as_token_ids,
)
from semblend_core.discovery import ISLAND_GRAM, FoundRuns, Geometry
from semblend_core.donors import DonorRecord, DonorRegistry, Regret
from semblend_core.planning import CostModel, Planner
from semblend_core.provider.open_requests import OpenRequests
from semblend_core.provider.sharing import may_share
from semblend_core.settings import Settings
from semblend_core.telemetry import (
    Aliased,
    AuditSink,
    Declined,
    DonorRegistered,
    ErrorSeen,
    Evicted,
    LookupDone,
    Materialized,
    NoAudit,
    PlanMade,
    ProviderCounters,
    Regretted,
    Stage,
)

logger = logging.getLogger(__name__)

BUDGET_TOKENS = 16_384
"""Prompt tokens for which one lookup may take ``lookup_budget_ms``; a longer prompt has more, as its prefill has."""


class SemBlend(SemanticLookupProvider, SemanticPrefixProvider):
    """Discovery, planning and telemetry behind both contracts. Make it with ``create_provider``.

    ``namespace`` serves the prefix contract, whose calls carry none; without it those calls find nothing.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        namespace: Namespace | None = None,
        audit: AuditSink | None = None,
        cost: CostModel | None = None,
    ) -> None:
        self.settings = settings
        self.registry = DonorRegistry(
            geometry=Geometry.for_min_span(settings.min_span_tokens, edited_text=settings.fuzzy_chunks),
            max_bytes=settings.donor_index_bytes,
            max_donors=settings.max_donors,
            eviction=settings.eviction,
        )
        self._planner = Planner(settings, self.registry, cost)
        self._namespace = namespace
        self.audit = audit or NoAudit()  # Public: whoever serves with this provider writes to the same stream.
        self._auditing = not isinstance(self.audit, NoAudit)  # Spares the hot path events that nobody reads.
        self._counters = ProviderCounters()
        self._open = OpenRequests(self.registry, settings.pin_ttl_s)
        self._discovery_only = settings.discovery_only
        self._self_test = SelfTestState.PENDING
        self._shut_down = False

    # The lookup contract.

    def lookup(self, request: LookupRequest) -> LookupResult:
        started = time.perf_counter()
        deadline = started + lookup_budget_s(self.settings, request.token_ids.size)
        try:
            self._open.begin(request.request_id)
            result = self._look_up(request, deadline)
        except Exception as error:
            result = LookupResult(None, self._contained(error, "lookup", request.request_id, request.namespace))
        elapsed = time.perf_counter() - started
        result = replace(result, elapsed_us=elapsed * 1e6)
        self._counters.count_lookup(result)
        if self._auditing:
            self._audit_lookup(request, result)
        return result

    def glimpse(self, request: LookupRequest) -> Glimpse | None:
        try:
            if self._refuse_early(request) is not None:
                return None
            tokens = request.token_ids[request.exact_prefix_tokens :]
            return self.registry.glimpse(request.namespace.digest, tokens)
        except Exception as error:
            self._contained(error, "glimpse", request.request_id, request.namespace)
            return None

    def offer_donor(self, offer: DonorOffer) -> OfferResult:
        try:
            result = self._register(offer)
        except Exception as error:
            result = OfferResult(0, self._contained(error, "offer", None, offer.namespace))
        if result.reason is None:
            event = DonorRegistered(
                request_id=None, namespace=offer.namespace, donor_id=offer.donor_id, tokens=result.registered_tokens
            )
            self.audit.emit(event)
        else:
            self.note_unwanted(offer.namespace, offer.donor_id, result.reason)
        return result

    def forget_donor(self, namespace: Namespace, donor_id: str) -> bool:
        return self._forget(namespace, donor_id, "forgotten")

    def lose_donor(self, namespace: Namespace, donor_id: str, cause: EvictionCause) -> bool:
        return self._forget(namespace, donor_id, cause)

    def _forget(self, namespace: Namespace, donor_id: str, cause: EvictionCause) -> bool:
        try:
            # One that another replaces is not missed.
            known = self.registry.forget(namespace.digest, donor_id, missed=cause != "replaced")
        except Exception as error:  # Its record went first: no plan can name the donor any more.
            self._contained(error, "forget", None, namespace)
            known = True
        if known:
            if cause in ("budget", "store"):
                self._counters.count_evictions()
            self.audit.emit(Evicted(namespace=namespace, donor_id=donor_id, cause=cause))
        return known

    def forget_tenant(self, tenant: str) -> None:
        self.registry.forget_tenant(tenant)

    def sweep(self) -> None:
        self.registry.sweep()

    def retire_donor(self, namespace: Namespace, donor_id: str) -> bool:
        self._open.release_expired()
        record = self.registry.record_of(namespace.digest, donor_id)
        if record is not None and record.pins:
            return False
        self._forget(namespace, donor_id, "replaced")
        return True

    def note_copied(self, namespace: Namespace, donor_id: str, tokens: int) -> None:
        self.registry.note_copied(namespace.digest, donor_id, tokens)

    def donor_tokens(self, namespace: Namespace, donor_id: str) -> TokenIds | None:
        return self.registry.tokens_of(namespace.digest, donor_id)

    def note_unwanted(self, namespace: Namespace, donor_id: str, reason: DeclineReason) -> None:
        self._counters.count_offer(OfferResult(0, reason))
        self.audit.emit(Declined(request_id=None, namespace=namespace, reason=reason, stage="offer", donor_id=donor_id))

    def report_outcome(self, outcome: Outcome) -> None:
        first, namespace = self._open.report(outcome.request_id)
        if not first:
            return
        self._counters.count_outcome(outcome)
        if outcome.kind is OutcomeKind.MATERIALIZED:
            self.audit.emit(Materialized.of(outcome, namespace=namespace))
        elif outcome.kind is OutcomeKind.ALIAS:
            self.audit.emit(Aliased.of(outcome, namespace=namespace))
        elif outcome.reason is not None:
            stage: Stage = "lookup" if namespace is None else "load"
            self.audit.emit(
                Declined(request_id=outcome.request_id, namespace=namespace, reason=outcome.reason, stage=stage)
            )

    def restrict_to_discovery(self, reason: str) -> None:
        logger.warning("SemBlend finds but no longer loads, for good: %s", reason)
        self._discovery_only = True

    def note_self_test(self, result: SelfTestResult) -> None:
        self._self_test = result.state
        if result.failed:
            duration = "for good" if result.final else "unless later prompts pass"
            logger.error("SemBlend's self-test failed, it finds and does not load, %s: %s", duration, result.says)
            self._discovery_only |= result.final
        elif result.passed:
            logger.info("SemBlend's self-test passed: %s", result.says)

    def note_background(self, tokens: int) -> None:
        self._counters.count_background(tokens)

    def note_probe(self, end: ProbeEnd) -> None:
        self._counters.count_probe(end)

    def stats(self) -> ProviderStats:
        return self._counters.snapshot(
            donors=len(self.registry),
            donor_bytes=self.registry.nbytes,
            pinned_requests=len(self._open),
            self_test=self._self_test,
        )

    def check_integrity(self) -> None:
        self.registry.check_integrity()

    def close(self) -> None:
        self._shut_down = True
        self._open.clear()
        self.registry.clear()
        self.audit.close()

    # The prefix contract.

    def on_init(self) -> None:
        """Nothing to prepare. What is on is said by the adapter, which knows the engine (``what_is_on``)."""

    def on_prefix_miss(self, rid: str, token_ids: Sequence[int]) -> SemanticPrefixResult | None:
        if self._namespace is None:
            return None
        try:
            request = LookupRequest(rid, self._namespace, as_token_ids(token_ids))
        except Exception as error:  # Whatever the engine handed over, it must not fail for it.
            self._contained(error, "lookup", rid, self._namespace)
            return None
        result = self.lookup(request)
        # This contract reports no outcome, so nothing may stay pinned behind the call.
        self._open.begin(rid)
        return None if result.plan is None or not result.materialize else _as_prefix(result.plan, request)

    def on_request_cached(self, rid: str, token_ids: Sequence[int]) -> None:
        if self._namespace is None:
            return
        try:
            offer = DonorOffer(rid, self._namespace, as_token_ids(token_ids))
        except Exception as error:
            self._contained(error, "offer", None, self._namespace)
            return
        self.offer_donor(offer)

    def on_shutdown(self) -> None:
        self.close()

    # Steps.

    def _audit_lookup(self, request: LookupRequest, result: LookupResult) -> None:
        self.audit.emit(LookupDone.of(request, result))
        if result.plan is not None:
            self.audit.emit(PlanMade.of(result.plan, materialize=result.materialize, namespace=request.namespace))

    def _look_up(self, request: LookupRequest, deadline: float) -> LookupResult:
        reason = self._refuse_early(request)
        if reason is not None:
            return LookupResult(None, reason)
        runs = self._find_runs(request, deadline)
        if runs is None:
            return LookupResult(None, DeclineReason.LOOKUP_TIMEOUT)
        chosen = self._planner.choose_runs(request, runs, deadline)
        donors = self.registry.pin(run.donor for run in chosen)
        if donors is None:
            return LookupResult(None, DeclineReason.DONOR_EVICTED)
        held = False
        try:
            answer = self._planner.plan(request, chosen, donors)
            if time.perf_counter() > deadline:
                answer = DeclineReason.LOOKUP_TIMEOUT
            if isinstance(answer, Plan):
                self._open.hold(request.request_id, request.namespace.digest, donors)
                held = True
                return LookupResult(answer, None, materialize=not self._discovery_only, cut_short=runs.cut_short)
            return LookupResult(None, answer, cut_short=runs.cut_short)
        finally:
            if not held:
                self.registry.unpin(donors)

    def _refuse_early(self, request: LookupRequest) -> DeclineReason | None:
        if self._shut_down:
            return DeclineReason.SHUT_DOWN
        if not self.settings.enabled:
            return DeclineReason.DISABLED
        if not may_share(self.settings, request.namespace):
            return DeclineReason.NO_SALT
        uncovered = request.token_ids.size - request.exact_prefix_tokens
        shortest = ISLAND_GRAM if self.settings.fuzzy_chunks else self.settings.min_span_tokens
        if uncovered < shortest:
            covered = request.exact_prefix_tokens > 0
            return DeclineReason.EXACT_PREFIX_COVERS if covered else DeclineReason.PROMPT_TOO_SHORT
        if not self.registry.has_donors(request.namespace.digest):
            return DeclineReason.NO_DONORS
        return None

    def _find_runs(self, request: LookupRequest, deadline: float) -> FoundRuns | None:
        """Runs behind the exact prefix, in prompt positions."""
        exact = request.exact_prefix_tokens
        shortest = ISLAND_GRAM if self.settings.fuzzy_chunks else self.settings.min_span_tokens
        tokens, seen = request.token_ids[exact:], request.glimpse
        runs = self.registry.find(request.namespace.digest, tokens, shortest, deadline, seen)
        return runs if runs is None else runs.behind(exact)

    def _register(self, offer: DonorOffer) -> OfferResult:
        tokens = offer.exact_token_ids
        if self._shut_down:
            return OfferResult(0, DeclineReason.SHUT_DOWN)
        if not self.settings.enabled:
            return OfferResult(0, DeclineReason.DISABLED)
        if not may_share(self.settings, offer.namespace):
            return OfferResult(0, DeclineReason.NO_SALT)
        if tokens.size < self.settings.min_span_tokens:
            too_short = offer.approximate_from is None
            return OfferResult(0, DeclineReason.DONOR_TOO_SHORT if too_short else DeclineReason.APPROXIMATE_SOURCE)
        self._open.release_expired()
        self._note_regrets(self.registry.regrets(offer.namespace.digest, tokens))
        reason, evicted = self.registry.register(offer.namespace.digest, offer.donor_id, tokens, offer.saved_ms)
        self._note_evictions(evicted)
        gone = tuple((record.namespace, record.donor_id) for record in evicted)
        if reason is not None:
            return OfferResult(0, reason, gone)
        return OfferResult(int(tokens.size), evicted=gone)

    def _note_regrets(self, regrets: list[Regret]) -> None:
        if regrets:
            self._counters.count_regrets(len(regrets))
        for regret in regrets:
            self.audit.emit(
                Regretted(
                    namespace=regret.namespace,
                    donor_id=regret.donor_id,
                    tokens=regret.tokens,
                    after_s=round(regret.after_s, 3),
                )
            )

    def _note_evictions(self, evicted: list[DonorRecord]) -> None:
        if evicted:
            self._counters.count_evictions(len(evicted))
        for record in evicted:
            self.audit.emit(
                Evicted(namespace=record.namespace, donor_id=record.donor_id, tokens=record.tokens, cause="budget")
            )

    def _contained(
        self, error: Exception, where: str, request_id: str | None, namespace: Namespace | None
    ) -> DeclineReason:
        """Log and audit a fault of our own; the engine goes on as if we were absent."""
        # The message may quote tokens or names: the log gets the class and the place, as the audit does.
        event = ErrorSeen.of(error, where, request_id=request_id, namespace=namespace)
        logger.error("SemBlend %s failed (%s at %s); prefilling normally", where, event.error, event.location)
        self.audit.emit(event)
        if isinstance(error, InvalidTokenIdsError):
            return DeclineReason.INVALID_TOKENS
        return DeclineReason.INTERNAL_ERROR


def lookup_budget_s(settings: Settings, prompt_tokens: int) -> float:
    """Seconds that one lookup may take."""
    return settings.lookup_budget_ms / 1e3 * max(1, -(-prompt_tokens // BUDGET_TOKENS))


def _as_prefix(plan: Plan, request: LookupRequest) -> SemanticPrefixResult:
    """What a prefix-only backend can use of a plan: a first span that did not move. The plan itself rides along."""
    first = plan.spans[0]
    unmoved = first.target_start == 0 and first.donor_start == 0
    cached = min(first.length, plan.prompt_tokens - 1) if unmoved else 0
    return SemanticPrefixResult(
        alternate_token_ids=request.token_ids[:cached],
        num_cached_tokens=cached,
        skip_insert=True,
        metadata={"plan": plan},
        source_id=first.donor_id if len(plan.donor_ids) == 1 else None,
    )
