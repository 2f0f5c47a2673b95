"""The cost gate predicts from measurements, and only from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core.contract import Plan, Row, RowKind, Span
from semblend_core.planning import CostModel
from semblend_core.settings import Settings


def plan(reused: int = 900, prompt: int = 1000) -> Plan:
    return Plan.over("r", prompt, 0, [Span(50, "d", 0, reused)])


@settings(deadline=None)
@given(st.floats(0.1, 100), st.floats(0, 0.01), st.floats(0.001, 1), st.floats(0, 5000), st.floats(0, 1))
def test_a_fit_recovers_the_costs_behind_exact_measurements(
    linear: float, quadratic: float, copy: float, overhead: float, share: float
) -> None:
    lengths = (512, 2048, 8192, 32768)
    model = CostModel.fit(
        [(n, linear * n + quadratic * n * n / 2) for n in lengths],
        [(n, copy * n + overhead) for n in lengths],
        share,
    )
    assert model.prefill_us_per_token == pytest.approx(linear, rel=1e-4, abs=1e-4)
    assert model.prefill_us_per_token_and_position == pytest.approx(quadratic, rel=1e-4, abs=1e-8)
    assert model.copy_us_per_token == pytest.approx(copy, rel=1e-4, abs=1e-6)
    assert model.overhead_us == pytest.approx(overhead, rel=1e-4, abs=1e-2)
    assert model.recompute_share == share
    assert model.prefill_us(0, 8192) == pytest.approx(linear * 8192 + quadratic * 8192**2 / 2, rel=1e-4)


def test_noise_never_makes_a_cost_negative() -> None:
    falling = CostModel.fit([(100, 10.0), (1000, 5.0)], [(100, 10.0), (1000, 500.0)])
    assert falling.prefill_us_per_token >= 0
    assert falling.prefill_us_per_token_and_position >= 0
    steep = CostModel.fit([(100, 1.0), (200, 90.0), (400, 900.0)], [(100, 10.0), (1000, 500.0)])
    assert steep.prefill_us_per_token == 0
    assert steep.overhead_us == 0, "a line below zero at no tokens has no overhead"


@pytest.mark.parametrize(
    ("prefills", "copies"),
    [
        ([(100, 1.0)], [(100, 1.0), (200, 2.0)]),
        ([(100, 1.0), (200, 2.0)], []),
        ([(100, 1.0), (100, 2.0)], [(100, 1.0), (200, 2.0)]),
        ([(100, 1.0), (200, 2.0)], [(100, 1.0), (100, 1.0), (100, 1.0)]),
    ],
)
def test_one_length_cannot_calibrate(prefills: list[tuple[int, float]], copies: list[tuple[int, float]]) -> None:
    with pytest.raises(ValueError, match="two prefills and two copies of different lengths"):
        CostModel.fit(prefills, copies)


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


def test_settings_without_calibration_give_no_model() -> None:
    assert CostModel.from_settings(Settings()) is None
    assert CostModel.from_settings(Settings(prefill_us_per_token=10.0)) is None
    assert CostModel.from_settings(Settings(copy_us_per_token=1.0)) is None


def test_settings_with_calibration_give_theirs() -> None:
    calibrated = Settings(
        prefill_us_per_token=10.0, copy_us_per_token=0.5, reuse_overhead_us=200.0, recompute_share=0.1
    )
    assert CostModel.from_settings(calibrated) == CostModel(10.0, 0.5, 200.0, 0.0, 0.1)


def test_numpy_measurements_are_fine() -> None:
    lengths = np.array([100, 1000, 5000])
    model = CostModel.fit(list(zip(lengths, lengths * 2.0, strict=True)), [(100, 50.0), (1000, 500.0)])
    assert model.prefill_us_per_token == pytest.approx(2.0)
