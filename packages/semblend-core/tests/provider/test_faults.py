"""A fault inside is contained, logged without its message, counted, and leaves nothing pinned."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from semblend_core import (
    CostModel,
    DeclineReason,
    DonorOffer,
    LookupRequest,
    Namespace,
    Outcome,
    OutcomeKind,
    Plan,
    SemBlend,
    TokenIds,
)
from semblend_core.discovery.search import Patience
from semblend_core.donors import DonorRegistry
from semblend_core.provider.open_requests import REMEMBERED_REPORTS, OpenRequests

Text = Callable[[int, int], TokenIds]
Offer = Callable[..., DonorOffer]
Ask = Callable[..., LookupRequest]

SECRET = "tokens 1 2 3 of tenant-secret"


def fail(*arguments: Any, **keywords: Any) -> Any:
    raise RuntimeError(SECRET)


def test_a_fault_in_a_lookup_is_a_decline(
    provider: SemBlend,
    text: Text,
    offer: Offer,
    request_for: Ask,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider.offer_donor(offer("d", text(1, 300)))
    monkeypatch.setattr(provider.registry, "find", fail)
    with caplog.at_level(logging.DEBUG):
        result = provider.lookup(request_for("r", text(1, 300)))
    assert result.reason is DeclineReason.INTERNAL_ERROR
    assert "RuntimeError" in caplog.text
    assert SECRET not in caplog.text
    assert provider.stats().declines == {}
    provider.report_outcome(Outcome("r", OutcomeKind.DECLINED, reason=result.reason))
    assert provider.stats().declines == {DeclineReason.INTERNAL_ERROR: 1}
    monkeypatch.undo()
    assert provider.lookup(request_for("s", np.concatenate([text(2, 20), text(1, 300)]))).plan is not None


def test_a_fault_after_pinning_releases_the_pins(
    make_provider: Callable[..., SemBlend], text: Text, offer: Offer, request_for: Ask
) -> None:
    class Broken(CostModel):
        def gain_us(self, plan: Plan) -> float:
            raise RuntimeError(SECRET)

    provider = make_provider({"cost": Broken(1.0, 1.0)}, max_donors=1)
    provider.offer_donor(offer("d", text(1, 300)))
    prompt = np.concatenate([text(2, 20), text(1, 300)])
    assert provider.lookup(request_for("r", prompt)).reason is DeclineReason.INTERNAL_ERROR
    assert provider.stats().pinned_requests == 0
    assert provider.offer_donor(offer("e", text(3, 300))).registered_tokens == 300, "the donor is still pinned"


def test_a_declined_plan_releases_the_pins(
    make_provider: Callable[..., SemBlend], text: Text, offer: Offer, request_for: Ask
) -> None:
    provider = make_provider(max_donors=1, min_saved_tokens=10_000)
    provider.offer_donor(offer("d", text(1, 300)))
    result = provider.lookup(request_for("r", np.concatenate([text(2, 20), text(1, 300)])))
    assert result.reason is DeclineReason.TOO_FEW_TOKENS_SAVED
    assert provider.offer_donor(offer("e", text(3, 300))).registered_tokens == 300


def test_a_lookup_out_of_time_is_declined_and_pins_nothing(
    make_provider: Callable[..., SemBlend], text: Text, offer: Offer, request_for: Ask
) -> None:
    provider = make_provider(lookup_budget_ms=1e-6, max_donors=1)
    provider.offer_donor(offer("d", text(1, 300)))
    result = provider.lookup(request_for("r", np.concatenate([text(2, 20), text(1, 300)])))
    assert result.reason is DeclineReason.LOOKUP_TIMEOUT
    assert provider.offer_donor(offer("e", text(3, 300))).registered_tokens == 300


@pytest.mark.parametrize(("tokens", "in_time"), [(1_000, False), (16_384, False), (80_000, True), (200_000, True)])
def test_the_time_for_a_lookup_grows_with_the_prompt(
    make_provider: Callable[..., SemBlend],
    text: Text,
    offer: Offer,
    request_for: Ask,
    monkeypatch: pytest.MonkeyPatch,
    tokens: int,
    in_time: bool,
) -> None:
    """A search of 20 ms, by a clock of our own, with 5 ms for every 16,384 tokens."""
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    provider = make_provider(lookup_budget_ms=5.0, min_reuse_ratio=0.0)
    provider.offer_donor(offer("d", text(1, 300)))
    search = provider.registry.find

    def slow_search(namespace: str, query: TokenIds, min_run: int, deadline: float | None, *more: Any) -> Any:
        clock.now += 0.020
        return search(namespace, query, min_run, None)

    monkeypatch.setattr(provider.registry, "find", slow_search)
    monkeypatch.setattr("semblend_core.provider.semblend.time", clock)
    result = provider.lookup(request_for("r", np.concatenate([text(1, 300), text(2, tokens - 300)])))
    assert result.reason is (None if in_time else DeclineReason.LOOKUP_TIMEOUT)


def test_a_lookup_that_was_cut_short_has_a_plan_and_is_counted(
    provider: SemBlend, text: Text, offer: Offer, request_for: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(seed: int) -> TokenIds:
        changed = text(1, 6000).copy()
        changed[seed * 7 :: 200] = 60_000 + seed
        return changed

    for seed in range(12):
        provider.offer_donor(offer(f"version {seed}", version(seed)))
    assert not provider.lookup(request_for("in time", version(20))).cut_short
    monkeypatch.setattr(Patience, "is_over", lambda patience: setattr(patience, "ended", True) or True)
    result = provider.lookup(request_for("late", version(21)))
    assert result.plan is not None
    assert result.cut_short
    assert provider.stats().lookups_cut_short == 1


def test_a_donor_evicted_between_search_and_pin_is_a_decline(
    provider: SemBlend,
    namespace: Namespace,
    text: Text,
    offer: Offer,
    request_for: Ask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider.offer_donor(offer("d", text(1, 300)))
    real = provider.registry.find

    def find_then_forget(*arguments: Any) -> Any:
        runs = real(*arguments)
        provider.forget_donor(namespace, "d")
        return runs

    monkeypatch.setattr(provider.registry, "find", find_then_forget)
    result = provider.lookup(request_for("r", np.concatenate([text(2, 20), text(1, 300)])))
    assert result.reason is DeclineReason.DONOR_EVICTED
    provider.check_integrity()


def test_a_fault_in_an_offer_is_a_decline_that_is_counted(
    provider: SemBlend,
    text: Text,
    offer: Offer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(provider.registry, "register", fail)
    assert provider.offer_donor(offer("d", text(1, 300))).reason is DeclineReason.INTERNAL_ERROR
    assert provider.stats().declines == {DeclineReason.INTERNAL_ERROR: 1}
    assert SECRET not in caplog.text


def test_namespaces_without_donors_are_not_kept(make_provider: Callable[..., SemBlend], text: Text) -> None:
    provider = make_provider(max_donors=2)
    for number in range(50):
        tenant = Namespace(
            model="m",
            revision="r",
            tokenizer="t",
            dtype="d",
            kv_layout="l",
            block_size=16,
            adapter=None,
            salt=f"tenant-{number}",
        )
        provider.offer_donor(DonorOffer("d", tenant, text(number, 100)))
    assert len(provider.registry._scopes) == 2


def test_pins_expire_when_no_outcome_comes() -> None:
    registry = DonorRegistry()
    registry.register("a", "d", np.arange(100, dtype=np.int32))
    record = registry.record_of("a", "d")
    assert record is not None
    now = [0.0]
    requests = OpenRequests(registry, ttl_s=10.0, clock=lambda: now[0])
    for name, moment in (("first", 0.0), ("second", 5.0)):
        now[0] = moment
        requests.begin(name)
        requests.hold(name, "a", registry.pin([record.serial]) or [])
    now[0] = 9.9
    requests.begin("other")
    assert record.pins == 2
    now[0] = 10.0
    requests.begin("other")
    assert record.pins == 1
    assert requests.report("first") == (True, None), "late, and still the first report"
    now[0] = 20.0
    requests.begin("other")
    assert (record.pins, len(requests)) == (0, 0)


def test_a_plan_that_another_replaces_releases_its_pins() -> None:
    registry = DonorRegistry()
    registry.register("a", "d", np.arange(100, dtype=np.int32))
    record = registry.record_of("a", "d")
    assert record is not None
    requests = OpenRequests(registry, ttl_s=10.0)
    for _ in range(3):  # As by lookups of one request in several threads.
        requests.hold("r", "a", registry.pin([record.serial]) or [])
    assert record.pins == 1
    assert requests.report("r") == (True, "a")
    assert record.pins == 0


def test_reports_are_remembered_in_bounded_number() -> None:
    requests = OpenRequests(DonorRegistry(), ttl_s=10.0)
    for number in range(REMEMBERED_REPORTS + 10):
        assert requests.report(str(number))[0]
    assert len(requests._reported) == REMEMBERED_REPORTS
    assert requests.report(str(REMEMBERED_REPORTS)) == (False, None)


def test_lookups_offers_and_reports_from_many_threads_add_up(
    make_provider: Callable[..., SemBlend], namespace: Namespace, text: Text, offer: Offer, request_for: Ask
) -> None:
    provider = make_provider(donor_index_bytes=300_000)
    texts = [text(seed, 300) for seed in range(40)]
    wrong: list[object] = []

    def work(worker: int) -> None:
        for number in range(40):
            name = f"{worker}-{number}"
            provider.offer_donor(offer(name, texts[number]))
            prompt = np.concatenate([texts[(number * 7) % 40][10:250], texts[number][5:200]])
            result = provider.lookup(request_for(name, prompt))
            if result.reason is DeclineReason.INTERNAL_ERROR:
                wrong.append(result)
            for span in result.plan.spans if result.plan else ():
                donor = texts[int(span.donor_id.split("-")[1])][span.donor_start : span.donor_end]
                if not np.array_equal(donor, prompt[span.target_start : span.target_end]):
                    wrong.append(span)
            if number % 3 == 0:
                provider.forget_donor(namespace, name)
            provider.report_outcome(Outcome(name, OutcomeKind.COLD))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    stats = provider.stats()
    assert (stats.lookups, stats.pinned_requests) == (160, 0)
    assert stats.outcomes == {OutcomeKind.COLD: 160}
    provider.check_integrity()
    left = [
        provider.registry.record_of(namespace.digest, f"{one}-{number}") for one in range(4) for number in range(40)
    ]
    assert not any(record.pins for record in left if record is not None)
