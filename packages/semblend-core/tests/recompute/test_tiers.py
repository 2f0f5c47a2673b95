"""Which tier does what with which shape of plan."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from semblend_core import DeclineReason, DonorOffer, LookupRequest, Namespace, Plan, Settings, Span, create_provider
from semblend_core.contract import RowKind
from semblend_core.recompute import ROW_SHIFT, choose_policy
from semblend_core.recompute.reuse import from_one_place
from semblend_core.settings import QualityTier

DOCUMENT = [Span(40, "a", 12, 500)]
EDITED = [Span(40, "a", 12, 200), Span(245, "a", 215, 300)]
REORDERED = [Span(0, "a", 400, 300), Span(300, "a", 0, 300)]
COMPOSITE = [Span(0, "a", 400, 300), Span(300, "b", 700, 300)]


def plan_of(spans: list[Span]) -> Plan:
    return Plan.over("r", 700, 0, spans)


@pytest.mark.parametrize(("spans", "one"), [(DOCUMENT, True), (EDITED, True), (REORDERED, False), (COMPOSITE, False)])
def test_one_document_with_edits_is_one_place(spans: list[Span], one: bool) -> None:
    assert from_one_place(spans) is one


def test_spans_of_one_donor_with_a_passage_left_out_are_two_places() -> None:
    assert not from_one_place([Span(0, "a", 0, 300), Span(300, "a", 600, 300)])


@pytest.mark.parametrize("spans", [DOCUMENT, EDITED])
def test_one_place_needs_no_probe_in_any_tier(spans: list[Span]) -> None:
    for tier in ("fast", "balanced", "strict"):
        choice = choose_policy(tier, plan_of(spans))
        assert choice is not None
        assert not choice.policy.needs_probe


@pytest.mark.parametrize("spans", [REORDERED, COMPOSITE])
def test_several_places_are_probed_when_balanced_and_declined_when_strict(spans: list[Span]) -> None:
    fast, balanced = choose_policy("fast", plan_of(spans)), choose_policy("balanced", plan_of(spans))
    assert fast is not None
    assert not fast.policy.needs_probe
    assert balanced is not None
    assert balanced.policy.needs_probe
    assert choose_policy("strict", plan_of(spans)) is None


def test_an_engine_that_cannot_probe_gets_longer_seams_and_the_correction() -> None:
    choice = choose_policy("balanced", plan_of(COMPOSITE), probing=False)
    assert choice is not None
    assert not choice.policy.needs_probe
    decided = choice.policy.plan(plan_of(COMPOSITE), budget=choice.budget)
    assert decided.correction is not None
    assert decided.correction.of_values < decided.correction.strength < ROW_SHIFT.strength
    assert decided.correction.of_values < ROW_SHIFT.of_values, "seams say less of the rest than rows that are looked at"
    assert 0.4 < decided.share <= 0.5


def passages(count: int, length: int = 2000) -> Plan:
    return Plan.over("r", length * count + 40, 0, [Span(length * n, f"d{n}", 50, length) for n in range(count)])


@pytest.mark.parametrize("probing", [True, False])
@pytest.mark.parametrize(("places", "budget"), [(1, 0.15), (2, 0.25), (4, 0.25), (5, 0.3), (10, 0.3)])
def test_the_more_places_the_more_is_computed(places: int, budget: float, probing: bool) -> None:
    choice = choose_policy("balanced", passages(places), probing=probing)
    assert choice is not None
    assert choice.budget == budget


@pytest.mark.parametrize(("length", "budget"), [(300, 0.5), (500, 0.384), (768, 0.25), (5000, 0.25)])
def test_of_a_short_prompt_with_several_passages_a_larger_part_is_computed(length: int, budget: float) -> None:
    choice = choose_policy("balanced", passages(4, length))
    assert choice is not None
    assert choice.budget == budget


@pytest.mark.parametrize(("tokens", "begins", "computed"), [(8000, 768, 832), (2000, 286, 300), (500, 61, 75)])
def test_a_long_document_is_computed_up_to_its_768th_token_and_a_short_one_within_the_budget(
    tokens: int, begins: int, computed: int
) -> None:
    """The seam behind an edit and the end of the prompt come first."""
    ends_with_question = Plan.over("r", tokens + 90, 0, [Span(40, "a", 12, tokens)])
    reaches_end = Plan.over("r", tokens + 40, 0, [Span(40, "a", 12, tokens)])
    choice = choose_policy("balanced", ends_with_question)
    assert choice is not None
    decided = choice.policy.plan(ends_with_question, budget=choice.budget)
    (seam,) = (row for row in decided.plan.rows if row.kind is RowKind.SEAM)
    assert (seam.start, seam.length) == (40, begins)
    assert choice.policy.plan(reaches_end, budget=choice.budget).recomputed_tokens <= computed


def test_a_higher_tier_computes_more_of_a_long_document() -> None:
    plan, shares = Plan.over("r", 9000, 0, [Span(40, "a", 12, 8900)]), []
    for tier in get_args(QualityTier):
        choice = choose_policy(tier, plan)
        assert choice is not None
        shares.append(choice.policy.plan(plan, budget=choice.budget).share)
    assert shares[0] < shares[1] < shares[2]


def test_a_limit_lowers_the_budget_and_never_raises_it() -> None:
    lowered = choose_policy("balanced", plan_of(COMPOSITE), probing=False, limit=0.1)
    assert lowered is not None
    decided = lowered.policy.plan(plan_of(COMPOSITE), budget=lowered.budget)
    assert 0.05 < decided.share <= 0.1
    same = choose_policy("balanced", plan_of(COMPOSITE), probing=False, limit=0.9)
    assert same == choose_policy("balanced", plan_of(COMPOSITE), probing=False)


@pytest.mark.parametrize(("tier", "reason"), [("balanced", None), ("strict", DeclineReason.QUALITY_TIER)])
def test_the_provider_declines_what_the_strict_tier_cannot_hold(tier: str, reason: DeclineReason | None) -> None:
    namespace = Namespace(
        model="m", revision="r", tokenizer="t", dtype="d", kv_layout="l", block_size=16, adapter=None, salt="tenant"
    )
    passages = [np.random.default_rng(seed).integers(0, 50_000, 300).astype(np.int32) for seed in range(2)]
    settings = Settings(quality_tier=tier, lookup_budget_ms=600_000.0)  # type: ignore[arg-type]
    provider = create_provider(settings, engine="test")
    provider.offer_donor(DonorOffer("a", namespace, np.concatenate(passages)))
    found = provider.lookup(LookupRequest("r", namespace, np.concatenate(passages[::-1])))
    assert found.reason is reason
    assert (found.plan is None) is (reason is not None)
    provider.close()


@pytest.mark.parametrize("spans", [DOCUMENT, EDITED, REORDERED, COMPOSITE], ids=["document", "edited", "order", "mix"])
@pytest.mark.parametrize("tier", ["fast", "balanced"])
def test_spending_more_computes_more_and_never_over_half(tier: QualityTier, spans: list[Span]) -> None:
    longer = [Span(10 * span.target_start, span.donor_id, 10 * span.donor_start, 10 * span.length) for span in spans]
    plan, shares = Plan.over("r", 7000, 0, longer), []
    for spending in (1.0, 1.5, 4.0, 100.0):
        choice = choose_policy(tier, plan, probing=False, spending=spending)
        assert choice is not None
        shares.append(choice.policy.plan(plan, budget=choice.budget).share)
    assert shares[0] < shares[1] < shares[2] <= shares[3] <= 0.5


def test_a_limit_holds_whatever_is_spent() -> None:
    choice = choose_policy("balanced", plan_of(COMPOSITE), probing=False, limit=0.2, spending=4.0)
    assert choice is not None
    assert choice.budget == 0.2
