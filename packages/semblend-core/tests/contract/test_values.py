"""Requests, offers, results and outcomes refuse what makes no sense, and say what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from semblend_core.contract import (
    DeclineReason,
    DonorOffer,
    InvalidTokenIdsError,
    LookupRequest,
    LookupResult,
    Namespace,
    OfferResult,
    Outcome,
    OutcomeKind,
    Plan,
    ProviderStats,
    SemanticLookupProvider,
    SemanticPrefixProvider,
    SemanticPrefixResult,
    Span,
    as_token_ids,
)

NAMESPACE = Namespace(
    model="m", revision="r", tokenizer="t", dtype="d", kv_layout="l", block_size=16, adapter=None, salt=None
)
PLAN = Plan.over("r", 10, 0, [Span(2, "d", 0, 4)])


def refuses(problem: str, build: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
    with pytest.raises(ValueError, match=problem):
        build(*arguments, **keywords)


def test_a_request_has_an_id_tokens_and_a_prefix_inside_its_prompt() -> None:
    refuses("request_id must not be empty", LookupRequest, "", NAMESPACE, [1])
    refuses("negative", LookupRequest, "r", NAMESPACE, [-1])
    refuses("exact_prefix_tokens 4 is outside the prompt of 3", LookupRequest, "r", NAMESPACE, [1, 2, 3], 4)
    refuses("exact_prefix_tokens -1 is outside", LookupRequest, "r", NAMESPACE, [1, 2, 3], -1)
    refuses("span_alignment must be at least 1", LookupRequest, "r", NAMESPACE, [1], 0, 0)


def test_a_request_keeps_its_own_read_only_tokens() -> None:
    theirs = np.arange(5, dtype=np.int32)
    request = LookupRequest("r", NAMESPACE, theirs, 5)
    theirs[0] = 99
    assert request.token_ids.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="read-only"):
        request.token_ids[0] = 1


def test_a_lookup_ends_in_a_plan_or_in_a_reason() -> None:
    refuses("a plan or in a reason", LookupResult, None, None)
    refuses("a plan or in a reason", LookupResult, PLAN, DeclineReason.NO_SPANS)


def test_only_a_plan_that_may_be_loaded_is_loadable() -> None:
    assert LookupResult(PLAN, None).loadable_plan is PLAN
    assert LookupResult(PLAN, None, materialize=False).loadable_plan is None
    assert LookupResult(None, DeclineReason.NO_SPANS).loadable_plan is None


def test_an_offer_names_its_donor_and_where_it_becomes_approximate() -> None:
    refuses("donor_id must not be empty", DonorOffer, "", NAMESPACE, [1])
    refuses("approximate_from 4 is outside the donor's 3", DonorOffer, "d", NAMESPACE, [1, 2, 3], 4)
    refuses("approximate_from -1 is outside", DonorOffer, "d", NAMESPACE, [1, 2, 3], -1)


@pytest.mark.parametrize(("approximate_from", "exact"), [(None, 3), (0, 0), (2, 2), (3, 3)])
def test_only_what_lies_before_the_first_approximate_token_is_offered(approximate_from: int | None, exact: int) -> None:
    assert (
        DonorOffer("d", NAMESPACE, as_token_ids([1, 2, 3]), approximate_from).exact_token_ids.tolist()
        == [1, 2, 3][:exact]
    )


def test_an_offer_is_kept_or_declined_with_a_reason() -> None:
    refuses("kept .* or declined", OfferResult, 0)
    refuses("kept .* or declined", OfferResult, 5, DeclineReason.DONOR_TOO_SHORT)
    refuses("kept .* or declined", OfferResult, -5, DeclineReason.DONOR_TOO_SHORT)
    refuses("kept .* or declined", OfferResult, -5)


@pytest.mark.parametrize("tokens", [None, 0, -1])
def test_a_materialized_outcome_confirms_at_least_one_token(tokens: int | None) -> None:
    refuses("at least 1", Outcome, "r", OutcomeKind.MATERIALIZED, tokens)


@pytest.mark.parametrize("kind", [kind for kind in OutcomeKind if kind is not OutcomeKind.MATERIALIZED])
def test_no_other_outcome_confirms_anything(kind: OutcomeKind) -> None:
    reason = DeclineReason.ABORTED if kind is OutcomeKind.DECLINED else None
    refuses("confirms nothing", Outcome, "r", kind, 0, reason=reason)
    refuses("confirms nothing", Outcome, "r", kind, 5, reason=reason)
    refuses("confirms nothing", Outcome, "r", kind, None, 5, reason=reason)


@pytest.mark.parametrize("tokens", [None, 0, -1])
def test_an_alias_states_for_how_many_tokens_other_kv_stood(tokens: int | None) -> None:
    refuses("at least 1", Outcome, "r", OutcomeKind.ALIAS, alias_tokens=tokens)
    refuses("is no alias", Outcome, "r", OutcomeKind.MATERIALIZED, 5, alias_tokens=5)


@pytest.mark.parametrize("confirmed", [0, -1])
def test_confirmed_bytes_are_known_or_none(confirmed: int) -> None:
    refuses("confirmed_bytes is at least 1", Outcome, "r", OutcomeKind.MATERIALIZED, 5, confirmed)


def test_a_declined_outcome_names_its_reason_and_a_served_one_has_none() -> None:
    refuses("names its reason", Outcome, "r", OutcomeKind.DECLINED)
    for kind in (OutcomeKind.COLD, OutcomeKind.EXACT_PREFIX, OutcomeKind.PLACEMENT):
        refuses("has no decline reason", Outcome, "r", kind, reason=DeclineReason.ABORTED)
    refuses("has no decline reason", Outcome, "r", OutcomeKind.MATERIALIZED, 5, reason=DeclineReason.ABORTED)
    assert Outcome("r", OutcomeKind.DISCOVERY_ONLY, reason=DeclineReason.SELF_TEST_FAILED).reason


def test_an_outcome_names_its_request() -> None:
    refuses("request_id must not be empty", Outcome, "", OutcomeKind.COLD)


@pytest.mark.parametrize("cached", [-1, 4])
def test_a_prefix_result_covers_no_more_than_its_tokens(cached: int) -> None:
    refuses("is outside the 3 alternate tokens", SemanticPrefixResult, [1, 2, 3], cached, True)


def test_a_prefix_result_holds_tokens() -> None:
    with pytest.raises(InvalidTokenIdsError):
        SemanticPrefixResult(np.array([1.5]), 0, True)
    assert SemanticPrefixResult(as_token_ids([]), 0, True).alternate_token_ids.dtype == np.int32


def test_counters_start_at_zero() -> None:
    stats = ProviderStats()
    assert (stats.lookups, stats.plans, stats.confirmed_tokens, dict(stats.declines)) == (0, 0, 0, {})


@pytest.mark.parametrize("contract", [SemanticLookupProvider, SemanticPrefixProvider])
def test_a_provider_must_implement_the_whole_contract(contract: type[Any]) -> None:
    with pytest.raises(TypeError, match="abstract"):
        contract()


def test_decline_reasons_and_kinds_are_the_labels_of_counters() -> None:
    assert all(reason == reason.value == reason.name.lower() for reason in DeclineReason)
    assert all(kind == kind.value == kind.name.lower() for kind in OutcomeKind)
