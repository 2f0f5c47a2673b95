"""A plan that no engine could carry out cannot be built; one that can adds up."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core.contract import InvalidPlanError, Plan, Row, RowKind, Span
from semblend_core.contract.plan import gap_rows


def span(start: int, length: int, donor: str = "d", donor_start: int = 0) -> Span:
    return Span(start, donor, donor_start, length)


def gap(start: int, length: int) -> Row:
    return Row(start, length, RowKind.GAP)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((0, "d", 0, 0), "at least one token"),
        ((0, "d", 0, -5), "at least one token"),
        ((-1, "d", 0, 5), "positions start at 0"),
        ((0, "d", -1, 5), "positions start at 0"),
        ((0, "", 0, 5), "donor_id must not be empty"),
    ],
)
def test_an_impossible_span_is_refused(arguments: tuple[int, str, int, int], problem: str) -> None:
    with pytest.raises(InvalidPlanError, match=problem):
        Span(*arguments)


@pytest.mark.parametrize(
    ("start", "length", "problem"),
    [(0, 0, "at least one token"), (3, -1, "at least one token"), (-1, 4, "positions start at 0")],
)
def test_an_impossible_row_is_refused(start: int, length: int, problem: str) -> None:
    with pytest.raises(InvalidPlanError, match=problem):
        Row(start, length, RowKind.SEAM)


@pytest.mark.parametrize(
    ("prompt", "exact", "spans", "rows", "problem"),
    [
        (10, 10, [span(0, 4)], [gap(4, 6)], "leaves nothing to plan"),
        (10, 11, [span(0, 4)], [gap(4, 6)], "leaves nothing to plan"),
        (10, -1, [span(0, 4)], [gap(4, 6)], "leaves nothing to plan"),
        (10, 0, [], [gap(0, 10)], "without spans"),
        (10, 0, [span(0, 10)], [], "last prompt token"),
        (10, 0, [span(0, 4), span(3, 4)], [gap(7, 3)], "spans overlap or are out of order at position 3"),
        (10, 0, [span(4, 2), span(0, 2)], [gap(2, 2), gap(6, 4)], "spans overlap or are out of order"),
        (10, 0, [span(0, 4)], [gap(4, 4), gap(6, 4)], "rows overlap or are out of order at position 6"),
        (10, 0, [span(0, 4)], [gap(7, 3), gap(4, 3)], "rows overlap or are out of order"),
        (10, 0, [span(0, 12)], [gap(9, 1)], "spans reach 12, beyond the prompt of 10"),
        (10, 0, [span(0, 4)], [gap(4, 7)], "rows reach 11, beyond the prompt of 10"),
        (10, 4, [span(2, 4)], [gap(6, 4)], "spans start at 2, inside the exact prefix of 4"),
        (10, 4, [span(6, 2)], [gap(2, 4), gap(8, 2)], "rows start at 2, inside the exact prefix of 4"),
        (10, 0, [span(0, 4)], [gap(4, 5)], r"last prompt token \(9\) must be computed"),
        (10, 0, [span(0, 4)], [gap(5, 5)], "position 4 is in no span and in no row"),
        (10, 2, [span(4, 4)], [gap(8, 2)], "position 2 is in no span and in no row"),
    ],
)
def test_an_impossible_plan_is_refused(
    prompt: int, exact: int, spans: list[Span], rows: list[Row], problem: str
) -> None:
    with pytest.raises(InvalidPlanError, match=problem):
        Plan("r", prompt, exact, tuple(spans), tuple(rows))


def test_an_invalid_plan_is_a_value_error() -> None:
    assert issubclass(InvalidPlanError, ValueError)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, int, list[Span]]:
    """(prompt length, exact prefix, non-overlapping spans behind it)."""
    exact = draw(st.integers(0, 30))
    position = exact
    spans: list[Span] = []
    for _ in range(draw(st.integers(1, 6))):
        position += draw(st.integers(0, 5))
        length = draw(st.integers(1, 20))
        spans.append(Span(position, draw(st.sampled_from("abc")), draw(st.integers(0, 99)), length))
        position += length
    return position + draw(st.integers(0, 5)), exact, spans


@settings(deadline=None)
@given(layouts())
def test_gaps_and_spans_partition_what_the_exact_prefix_leaves(layout: tuple[int, int, list[Span]]) -> None:
    prompt, exact, spans = layout
    covered = [position for each in spans for position in range(each.target_start, each.target_end)]
    missing = [position for row in gap_rows(prompt, exact, spans) for position in range(row.start, row.end)]
    assert sorted([*covered, *missing]) == list(range(exact, prompt))


@settings(deadline=None)
@given(layouts(), st.data())
def test_a_plan_over_spans_adds_up(layout: tuple[int, int, list[Span]], data: st.DataObject) -> None:
    prompt, exact, spans = layout
    seams = [Row(each.target_start, data.draw(st.integers(1, each.length)), RowKind.SEAM) for each in spans]
    chosen = data.draw(st.lists(st.sampled_from(seams), unique=True))
    shuffled = data.draw(st.permutations(spans))
    plan = Plan.over("r", prompt, exact, shuffled, chosen)
    assert list(plan.spans) == spans
    assert plan.rows[-1].end == prompt
    assert plan.exact_prefix_tokens + plan.reused_tokens + plan.computed_tokens == prompt
    assert plan.reused_tokens >= 0
    assert plan.first_approximate_token == spans[0].target_start
    assert plan.donor_ids == tuple(dict.fromkeys(each.donor_id for each in spans))
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_a_span_to_the_end_gets_its_last_token_computed() -> None:
    plan = Plan.over("r", 10, 0, [span(2, 8)])
    assert plan.rows == (gap(0, 2), Row(9, 1, RowKind.CHOSEN))
    assert plan.reused_tokens == 7


def test_a_shift_is_how_far_the_span_moved() -> None:
    moved = span(5, 3, donor_start=8)
    assert (moved.shift, moved.target_end, moved.donor_end) == (-3, 8, 11)


def test_plans_cannot_be_changed() -> None:
    plan = Plan.over("r", 10, 0, [span(2, 4)])
    with pytest.raises(FrozenInstanceError):
        plan.prompt_tokens = 11  # type: ignore[misc]
