"""Costs that settings give: what they say of a plan."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core.contract import Plan, Row, RowKind, Span
from semblend_core.planning import CostModel
from semblend_core.settings import Settings


def plan(reused: int = 900, prompt: int = 1000) -> Plan:
    return Plan.over("r", prompt, 0, [Span(50, "d", 0, reused)])


@pytest.mark.parametrize("name", CostModel.__slots__)
@pytest.mark.parametrize("wrong", [-0.1, float("nan"), float("inf")])
def test_a_cost_that_is_no_cost_is_refused_by_name(name: str, wrong: float) -> None:
    right: dict[str, Any] = {"prefill_us_per_token": 1.0, "copy_us_per_token": 1.0}
    with pytest.raises(ValueError, match=name):
        CostModel(**{**right, name: wrong})


def test_a_share_above_one_is_refused() -> None:
    with pytest.raises(ValueError, match="recompute_share"):
        CostModel(1.0, 1.0, recompute_share=1.5)


def test_the_gain_is_what_is_not_computed_less_what_is_moved() -> None:
    assert CostModel(10.0, 1.0, 100.0).gain_us(plan()) == pytest.approx(900 * 10 - 900 * 1 - 100)
    assert CostModel(10.0, 1.0, 100.0, recompute_share=0.5).gain_us(plan()) == pytest.approx(4500 - 900 - 100)


def test_reuse_that_costs_more_than_it_saves_has_a_negative_gain() -> None:
    assert CostModel(1.0, 2.0).gain_us(plan()) < 0
    assert CostModel(1.0, 0.0, 10_000.0).gain_us(plan()) < 0
    assert CostModel(1.0, 0.0, recompute_share=1.0).gain_us(plan()) <= 0


def test_rows_inside_spans_are_not_spared() -> None:
    seamed = Plan.over("r", 1000, 0, [Span(50, "d", 0, 900)], [Row(50, 100, RowKind.SEAM)])
    assert CostModel(10.0, 0.0).gain_us(seamed) == pytest.approx(8000)


def test_late_tokens_are_worth_more_where_attention_costs() -> None:
    model = CostModel(1.0, 0.1, prefill_us_per_token_and_position=0.01)
    early = Plan.over("r", 1000, 0, [Span(0, "d", 0, 400)])
    late = Plan.over("r", 1000, 0, [Span(500, "d", 0, 400)])
    assert model.gain_us(late) > model.gain_us(early)


@settings(deadline=None)
@given(st.integers(0, 500), st.integers(1, 500), st.integers(1, 500))
def test_prefill_costs_add_up_over_pieces(start: int, first: int, second: int) -> None:
    model = CostModel(3.0, 0.1, prefill_us_per_token_and_position=0.02)
    middle, end = start + first, start + first + second
    assert model.prefill_us(start, end) == pytest.approx(
        model.prefill_us(start, middle) + model.prefill_us(middle, end)
    )


def test_settings_without_both_times_give_no_model() -> None:
    assert CostModel.from_settings(Settings()) is None
    assert CostModel.from_settings(Settings(prefill_us_per_token=10.0)) is None
    assert CostModel.from_settings(Settings(copy_us_per_token=1.0)) is None


def test_settings_with_both_times_give_theirs() -> None:
    calibrated = Settings(
        prefill_us_per_token=10.0, copy_us_per_token=0.5, reuse_overhead_us=200.0, recompute_share=0.1
    )
    assert CostModel.from_settings(calibrated) == CostModel(10.0, 0.5, 200.0, 0.0, 0.1)
