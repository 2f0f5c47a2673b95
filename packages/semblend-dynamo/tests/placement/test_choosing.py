"""Which worker a request goes to, and the reason that is given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend_dynamo.placement import Candidate, Decision, PlacementRule, Reason, choose

RULE = PlacementRule(credit=0.8, min_tokens=64, margin_tokens=64)


def idle(worker: str, prompt: int = 1000, exact: int = 0, load: float = 0) -> Candidate[str]:
    return Candidate(worker, load, prompt - exact, exact)


def test_the_worker_that_holds_the_donor_is_chosen() -> None:
    decision = choose([idle("a"), idle("b"), idle("c")], {"b": 900}, RULE)
    assert decision == Decision("b", Reason.SPANS, 900, 720)


def test_a_little_credit_is_left_to_the_routers_own_rule() -> None:
    assert choose([idle("a"), idle("b")], {"b": 63}, RULE) == Decision(None, Reason.TOO_LITTLE, 63)


def test_a_gain_below_the_margin_is_left_to_the_routers_own_rule() -> None:
    decision = choose([idle("a"), idle("b")], {"b": 79}, RULE)
    assert (decision.worker, decision.reason) == (None, Reason.WITHIN_MARGIN)
    assert choose([idle("a"), idle("b")], {"b": 80}, RULE).worker == "b"


def test_nobody_holds_the_donors() -> None:
    assert choose([idle("a")], {}, RULE).reason is Reason.NOT_RESIDENT
    assert choose([idle("a")], {"gone": 500}, RULE).reason is Reason.NOT_RESIDENT


def test_a_busy_worker_is_not_waited_for() -> None:
    decision = choose([idle("a"), idle("b", load=5000)], {"b": 900}, RULE)
    assert decision == Decision(None, Reason.BUSY, 900)


def test_an_exact_prefix_of_the_same_length_wins() -> None:
    decision = choose([idle("exact", exact=900), idle("donor")], {"donor": 900}, RULE)
    assert decision == Decision(None, Reason.EXACT_WINS, 900)


def test_at_equal_cost_the_longer_exact_prefix_is_chosen() -> None:
    candidates = [idle("donor"), idle("both", exact=400, load=400), idle("cold")]
    assert choose(candidates, {"donor": 400, "both": 400}, RULE).worker == "both"


def test_the_own_rule_may_take_any_of_those_it_cannot_tell_apart() -> None:
    """Both hold the donor, the third does not: left alone, the router might take the third."""
    decision = choose([idle("a"), idle("b"), idle("c")], {"a": 900, "b": 900}, RULE)
    assert decision.worker in ("a", "b")


def test_where_all_hold_it_the_own_rule_decides() -> None:
    decision = choose([idle("a"), idle("b")], {"a": 900, "b": 900}, RULE)
    assert (decision.worker, decision.reason) == (None, Reason.WITHIN_MARGIN)


def test_likeness_needs_no_margin_but_never_overrules_load_or_exact_prefixes() -> None:
    like = {"b": 30}
    assert choose([idle("a"), idle("b")], like, RULE, because=Reason.LIKENESS).worker == "b"
    assert choose([idle("a"), idle("b", load=100)], like, RULE, because=Reason.LIKENESS).reason is Reason.BUSY
    assert choose([idle("a", exact=64), idle("b")], like, RULE, because=Reason.LIKENESS).worker is None


@given(
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 2000)), min_size=1, max_size=6),
    st.dictionaries(st.integers(0, 7), st.integers(0, 2000)),
)
def test_whoever_is_chosen_is_no_dearer_than_anyone(workers: list[tuple[int, int]], credits: dict[int, int]) -> None:
    candidates = [Candidate(name, load, 2000 - exact, exact) for name, (load, exact) in enumerate(workers)]
    decision = choose(candidates, credits, RULE)
    if decision.worker is not None:
        costs = {each.worker: each.cost - 0.8 * credits.get(each.worker, 0) for each in candidates}
        assert costs[decision.worker] == pytest.approx(min(costs.values()))
        assert credits[decision.worker] >= 1
        assert decision.gain_tokens >= RULE.margin_tokens
