"""Counters: consistent, and sparing with the word reuse."""

from __future__ import annotations

import threading

from semblend_core.contract import (
    DeclineReason,
    LookupResult,
    OfferResult,
    Outcome,
    OutcomeKind,
    Plan,
    ProviderStats,
    Span,
)
from semblend_core.telemetry import ProviderCounters

FOUND = LookupResult(Plan.over("r", 200, 0, [Span(0, "d", 8, 128)]), None)
NOTHING = LookupResult(None, DeclineReason.NO_SPANS)
REFUSED = Outcome("r", OutcomeKind.DECLINED, reason=DeclineReason.NO_SPANS)
LANDED = Outcome("r", OutcomeKind.MATERIALIZED, confirmed_tokens=128)


def snapshot(counters: ProviderCounters) -> ProviderStats:
    return counters.snapshot(donors=0, donor_bytes=0, pinned_requests=0)


def test_fresh_counters_are_all_zero() -> None:
    assert snapshot(ProviderCounters()) == ProviderStats()


def test_a_plan_is_no_reuse_until_its_outcome_says_so() -> None:
    counters = ProviderCounters()
    counters.count_lookup(FOUND)
    assert (snapshot(counters).plans, snapshot(counters).confirmed_tokens) == (1, 0)
    counters.count_outcome(LANDED)
    assert snapshot(counters).confirmed_tokens == 128


def test_kv_of_other_tokens_is_counted_apart_and_never_as_reuse() -> None:
    counters = ProviderCounters()
    counters.count_outcome(Outcome("r", OutcomeKind.ALIAS, alias_tokens=96))
    stats = snapshot(counters)
    assert (stats.alias_tokens, stats.confirmed_tokens) == (96, 0)
    assert stats.outcomes == {OutcomeKind.ALIAS: 1}


def test_a_refused_lookup_is_a_decline_once_its_outcome_is_reported_and_only_once() -> None:
    counters = ProviderCounters()
    counters.count_lookup(NOTHING)
    assert (snapshot(counters).lookups, snapshot(counters).plans, snapshot(counters).declines) == (1, 0, {})
    counters.count_outcome(REFUSED)
    assert snapshot(counters).declines == {DeclineReason.NO_SPANS: 1}


def test_declines_are_refused_offers_and_outcomes_with_a_reason() -> None:
    counters = ProviderCounters()
    counters.count_offer(OfferResult(0, DeclineReason.DONOR_TOO_SHORT))
    counters.count_offer(OfferResult(64))
    counters.count_outcome(Outcome("r", OutcomeKind.DECLINED, reason=DeclineReason.LOAD_FAILED))
    counters.count_outcome(Outcome("r", OutcomeKind.DISCOVERY_ONLY, reason=DeclineReason.SELF_TEST_FAILED))
    counters.count_outcome(Outcome("r", OutcomeKind.DISCOVERY_ONLY))
    stats = snapshot(counters)
    assert stats.declines == {
        DeclineReason.DONOR_TOO_SHORT: 1,
        DeclineReason.LOAD_FAILED: 1,
        DeclineReason.SELF_TEST_FAILED: 1,
    }
    assert stats.outcomes == {OutcomeKind.DECLINED: 1, OutcomeKind.DISCOVERY_ONLY: 2}
    assert stats.lookups == 0


def test_the_gauges_come_from_the_provider() -> None:
    counters = ProviderCounters()
    counters.count_evictions(3)
    stats = counters.snapshot(donors=5, donor_bytes=4096, pinned_requests=2)
    assert (stats.evicted_donors, stats.donors, stats.donor_bytes, stats.pinned_requests) == (3, 5, 4096, 2)


def test_a_snapshot_does_not_change_afterwards() -> None:
    counters = ProviderCounters()
    counters.count_outcome(REFUSED)
    before = snapshot(counters)
    counters.count_outcome(REFUSED)
    assert before.declines == {DeclineReason.NO_SPANS: 1}


def test_threads_lose_no_count_and_every_snapshot_adds_up() -> None:
    counters = ProviderCounters()
    threads, each = 8, 2000
    start = threading.Barrier(threads + 1)

    def work() -> None:
        start.wait()
        for number in range(each):
            counters.count_lookup(FOUND)
            counters.count_outcome(LANDED if number % 2 else REFUSED)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    start.wait()
    while any(worker.is_alive() for worker in workers):
        stats = snapshot(counters)
        assert stats.lookups == stats.plans
        assert stats.declines.get(DeclineReason.NO_SPANS, 0) == stats.outcomes.get(OutcomeKind.DECLINED, 0)
        assert stats.confirmed_tokens == 128 * stats.outcomes.get(OutcomeKind.MATERIALIZED, 0)
    for worker in workers:
        worker.join()
    assert snapshot(counters).lookups == threads * each
    assert snapshot(counters).confirmed_tokens == 128 * threads * each // 2
