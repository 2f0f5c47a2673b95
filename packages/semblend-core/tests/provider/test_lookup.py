"""The lookup contract from lookup to outcome: what is found, why nothing is, and who holds whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from semblend_core import (
    DeclineReason,
    DonorOffer,
    LookupRequest,
    Namespace,
    Outcome,
    OutcomeKind,
    SelfTestResult,
    SelfTestState,
    SemanticLookupProvider,
    SemanticPrefixProvider,
    SemBlend,
    TokenIds,
)

Text = Callable[[int, int], TokenIds]
Offer = Callable[..., DonorOffer]
Ask = Callable[..., LookupRequest]


def joined(*parts: TokenIds) -> TokenIds:
    return np.concatenate(parts)


def declined(request_id: str, reason: DeclineReason = DeclineReason.ABORTED) -> Outcome:
    return Outcome(request_id, OutcomeKind.DECLINED, reason=reason)


def test_one_provider_serves_both_contracts(provider: SemBlend) -> None:
    assert isinstance(provider, SemanticLookupProvider)
    assert isinstance(provider, SemanticPrefixProvider)


def test_a_document_behind_another_instruction_is_found(
    provider: SemBlend, text: Text, offer: Offer, request_for: Ask
) -> None:
    assert provider.offer_donor(offer("d", joined(text(1, 64), text(2, 400)))).registered_tokens == 464
    result = provider.lookup(request_for("r", joined(text(3, 80), text(2, 400), text(4, 40))))
    assert result.reason is None
    assert result.plan is not None
    assert result.loadable_plan is result.plan
    (span,) = result.plan.spans
    assert (span.target_start, span.donor_id, span.donor_start, span.length) == (80, "d", 64, 400)
    assert result.plan.request_id == "r"
    assert result.elapsed_us is not None
    assert result.elapsed_us > 0
    provider.check_integrity()


@pytest.mark.parametrize(
    ("tokens", "exact", "reason"),
    [
        (0, 0, DeclineReason.PROMPT_TOO_SHORT),
        (1, 0, DeclineReason.PROMPT_TOO_SHORT),
        (63, 0, DeclineReason.PROMPT_TOO_SHORT),
        (64, 0, DeclineReason.NO_SPANS),
        (100, 50, DeclineReason.EXACT_PREFIX_COVERS),
        (100, 100, DeclineReason.EXACT_PREFIX_COVERS),
    ],
)
def test_a_prompt_too_short_or_covered_is_declined(
    provider: SemBlend,
    text: Text,
    offer: Offer,
    request_for: Ask,
    tokens: int,
    exact: int,
    reason: DeclineReason,
) -> None:
    provider.offer_donor(offer("d", text(1, 200)))
    assert provider.lookup(request_for("r", text(2, tokens), exact_prefix_tokens=exact)).reason is reason


def test_a_namespace_without_donors_says_so(
    provider: SemBlend, namespace: Namespace, text: Text, offer: Offer, request_for: Ask
) -> None:
    assert provider.lookup(request_for("r", text(2, 200))).reason is DeclineReason.NO_DONORS
    provider.offer_donor(offer("d", text(1, 200)))
    assert provider.lookup(request_for("r", text(2, 200))).reason is DeclineReason.NO_SPANS
    provider.forget_donor(namespace, "d")
    assert provider.lookup(request_for("r", text(1, 200))).reason is DeclineReason.NO_DONORS


def test_spans_respect_exact_prefix_and_alignment(
    provider: SemBlend, text: Text, offer: Offer, request_for: Ask
) -> None:
    provider.offer_donor(offer("d", text(1, 500)))
    prompt = joined(text(1, 500), text(2, 100))
    result = provider.lookup(request_for("r", prompt, exact_prefix_tokens=100, span_alignment=32))
    assert result.plan is not None
    (span,) = result.plan.spans
    assert (span.target_start, span.target_end, span.shift) == (128, 480, 0)
    assert result.plan.rows[0].start == 100


@pytest.mark.parametrize(
    ("tokens", "more", "reason"),
    [
        (63, {}, DeclineReason.DONOR_TOO_SHORT),
        (0, {}, DeclineReason.DONOR_TOO_SHORT),
        (200, {"approximate_from": 63}, DeclineReason.APPROXIMATE_SOURCE),
        (200, {"approximate_from": 0}, DeclineReason.APPROXIMATE_SOURCE),
    ],
)
def test_a_donor_without_enough_exact_tokens_is_declined(
    provider: SemBlend, text: Text, offer: Offer, tokens: int, more: dict[str, Any], reason: DeclineReason
) -> None:
    result = provider.offer_donor(offer("d", text(1, tokens), **more))
    assert (result.registered_tokens, result.reason) == (0, reason)
    assert provider.stats().declines == {reason: 1}
    assert provider.stats().donors == 0


def test_only_the_exact_part_of_a_donor_is_kept(provider: SemBlend, text: Text, offer: Offer, request_for: Ask) -> None:
    assert provider.offer_donor(offer("d", text(1, 400), approximate_from=200)).registered_tokens == 200
    result = provider.lookup(request_for("r", joined(text(2, 30), text(1, 400))))
    assert result.plan is not None
    assert result.plan.spans[-1].donor_end == 200


def test_a_donor_is_offered_once(provider: SemBlend, text: Text, offer: Offer) -> None:
    provider.offer_donor(offer("d", text(1, 200)))
    assert provider.offer_donor(offer("d", text(2, 200))).reason is DeclineReason.DUPLICATE_DONOR
    assert provider.stats().donors == 1


def test_a_forgotten_donor_is_never_found_again(
    provider: SemBlend, namespace: Namespace, text: Text, offer: Offer, request_for: Ask
) -> None:
    provider.offer_donor(offer("d", text(1, 200)))
    provider.offer_donor(offer("e", text(2, 200)))
    assert provider.forget_donor(namespace, "d") is True
    assert provider.forget_donor(namespace, "d") is False
    assert provider.forget_donor(namespace, "unknown") is False
    assert provider.lookup(request_for("r", text(1, 200))).reason is DeclineReason.NO_SPANS


def test_a_plan_pins_its_donors_until_its_outcome(
    make_provider: Callable[..., SemBlend], text: Text, offer: Offer, request_for: Ask
) -> None:
    provider = make_provider(max_donors=1)
    provider.offer_donor(offer("d", text(1, 300)))
    assert provider.lookup(request_for("r", joined(text(2, 20), text(1, 300)))).plan is not None
    assert provider.stats().pinned_requests == 1
    assert provider.offer_donor(offer("e", text(3, 300))).reason is DeclineReason.DONOR_TOO_LARGE
    provider.report_outcome(Outcome("r", OutcomeKind.MATERIALIZED, confirmed_tokens=280, confirmed_bytes=7))
    assert provider.stats().pinned_requests == 0
    assert provider.offer_donor(offer("e", text(3, 300))).registered_tokens == 300
    stats = provider.stats()
    assert (stats.evicted_donors, stats.confirmed_tokens, stats.donors) == (1, 280, 1)
    provider.check_integrity()


def test_a_second_lookup_of_a_request_replaces_its_plan(
    make_provider: Callable[..., SemBlend], text: Text, offer: Offer, request_for: Ask
) -> None:
    provider = make_provider(max_donors=1)
    provider.offer_donor(offer("d", text(1, 300)))
    for _ in range(3):
        assert provider.lookup(request_for("r", joined(text(2, 20), text(1, 300)))).plan is not None
    assert provider.lookup(request_for("r", text(9, 300))).plan is None
    assert provider.stats().pinned_requests == 0
    assert provider.offer_donor(offer("e", text(3, 300))).registered_tokens == 300


def test_a_second_report_is_ignored_until_the_request_is_looked_up_again(
    provider: SemBlend, text: Text, offer: Offer, request_for: Ask
) -> None:
    provider.offer_donor(offer("d", text(1, 300)))
    landed = Outcome("r", OutcomeKind.MATERIALIZED, confirmed_tokens=100)
    for lookups in (1, 2):
        provider.lookup(request_for("r", joined(text(2, 20), text(1, 300))))
        provider.report_outcome(landed)
        provider.report_outcome(landed)
        provider.report_outcome(declined("r"))
        assert provider.stats().confirmed_tokens == 100 * lookups
        assert provider.stats().outcomes == {OutcomeKind.MATERIALIZED: lookups}
        assert provider.stats().declines == {}


def test_a_refused_lookup_is_counted_when_its_outcome_is_reported(
    provider: SemBlend, text: Text, request_for: Ask
) -> None:
    reason = provider.lookup(request_for("r", text(1, 300))).reason
    assert reason is DeclineReason.NO_DONORS
    assert provider.stats().declines == {}
    provider.report_outcome(declined("r", reason))
    assert provider.stats().declines == {DeclineReason.NO_DONORS: 1}
    assert (provider.stats().lookups, provider.stats().plans) == (1, 0)


def test_discovery_only_finds_and_does_not_hand_out(
    make_provider: Callable[..., SemBlend],
    text: Text,
    offer: Offer,
    request_for: Ask,
    caplog: pytest.LogCaptureFixture,
) -> None:
    by_setting, by_call = make_provider(discovery_only=True), make_provider()
    by_call.restrict_to_discovery("self-test failed")
    assert "self-test failed" in caplog.text
    for provider in (by_setting, by_call):
        provider.offer_donor(offer("d", text(1, 300)))
        result = provider.lookup(request_for("r", joined(text(2, 20), text(1, 300))))
        assert result.plan is not None
        assert result.materialize is False
        assert result.loadable_plan is None
        provider.report_outcome(Outcome("r", OutcomeKind.DISCOVERY_ONLY))
        assert provider.stats().confirmed_tokens == 0


@pytest.mark.parametrize("final", [True, False])
def test_a_failed_self_test_is_an_error_with_its_figures_and_a_state(
    make_provider: Callable[..., SemBlend], caplog: pytest.LogCaptureFixture, final: bool
) -> None:
    provider = make_provider()
    assert provider.stats().self_test is SelfTestState.PENDING
    provider.note_self_test(SelfTestResult(SelfTestState.FAILED, "off by 1.3", final=final))
    (record,) = caplog.records
    assert (record.levelname, "off by 1.3" in record.message, "for good" in record.message) == ("ERROR", True, final)
    assert provider.stats().self_test is SelfTestState.FAILED


def test_a_self_test_that_passes_in_the_end_lets_plans_be_loaded(
    make_provider: Callable[..., SemBlend],
    text: Text,
    offer: Offer,
    request_for: Ask,
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider = make_provider()
    provider.note_self_test(SelfTestResult(SelfTestState.FAILED, "off by 0.03", final=False))
    with caplog.at_level("INFO"):
        provider.note_self_test(SelfTestResult(SelfTestState.PASSED, "agrees to 0.004", final=False))
    assert "agrees to 0.004" in caplog.text
    assert provider.stats().self_test is SelfTestState.PASSED
    provider.offer_donor(offer("d", text(1, 300)))
    assert provider.lookup(request_for("r", joined(text(2, 20), text(1, 300)))).loadable_plan is not None


def test_a_disabled_provider_does_nothing(
    make_provider: Callable[..., SemBlend], text: Text, offer: Offer, request_for: Ask
) -> None:
    provider = make_provider(enabled=False)
    assert provider.offer_donor(offer("d", text(1, 300))).reason is DeclineReason.DISABLED
    assert provider.lookup(request_for("r", text(1, 300))).reason is DeclineReason.DISABLED
    assert provider.stats().donors == 0


def test_a_closed_provider_declines_and_closes_again(
    provider: SemBlend, namespace: Namespace, text: Text, offer: Offer, request_for: Ask
) -> None:
    provider.offer_donor(offer("d", text(1, 300)))
    provider.lookup(request_for("r", joined(text(2, 20), text(1, 300))))
    provider.close()
    provider.close()
    assert provider.lookup(request_for("s", text(1, 300))).reason is DeclineReason.SHUT_DOWN
    assert provider.offer_donor(offer("e", text(1, 300))).reason is DeclineReason.SHUT_DOWN
    assert provider.forget_donor(namespace, "d") is False
    provider.report_outcome(declined("r"))
    assert (provider.stats().donors, provider.stats().pinned_requests) == (0, 0)
    provider.check_integrity()


def test_one_of_two_donors_with_the_same_document_serves_it_whole(
    provider: SemBlend, namespace: Namespace, text: Text, offer: Offer, request_for: Ask
) -> None:
    for name in ("old", "new"):
        provider.offer_donor(offer(name, joined(text(ord(name[0]), 20), text(1, 300))))
    plan = provider.lookup(request_for("r", joined(text(2, 20), text(1, 300)))).plan
    assert plan is not None
    assert len(plan.donor_ids) == 1
    assert plan.reused_tokens == 299


def test_an_offer_names_those_whom_it_cost_their_place(
    make_provider: Callable[..., SemBlend], offer: Callable[..., DonorOffer], text: Text, namespace: Namespace
) -> None:
    provider = make_provider(max_donors=2, eviction="lfu")
    assert [provider.offer_donor(offer(name, text(seed, 300))).evicted for seed, name in enumerate("ab")] == [(), ()]
    provider.lookup(LookupRequest("r", namespace, text(0, 300)))
    provider.report_outcome(Outcome("r", OutcomeKind.MATERIALIZED, confirmed_tokens=1))
    assert provider.offer_donor(offer("c", text(2, 300))).evicted == ((namespace.digest, "b"),)
