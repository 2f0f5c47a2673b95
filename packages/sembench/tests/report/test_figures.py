from __future__ import annotations

import math

import pytest

from sembench.report.figures import (
    NOT_MEASURED,
    count,
    interval_cell,
    interval_words,
    milliseconds,
    number,
    percent,
    rate_cell,
    times,
)
from sembench.schema import Interval, Rate


@pytest.mark.parametrize("word", [number, count, milliseconds, times, percent])
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_was_not_measured_is_never_a_number(word: object, value: float | None) -> None:
    assert word(value) == NOT_MEASURED  # type: ignore[operator]


@pytest.mark.parametrize("word", [number, count, milliseconds, times, percent])
def test_zero_is_a_number(word: object) -> None:
    assert str(word(0)).startswith("0")  # type: ignore[operator]


def test_numbers_keep_three_digits_and_small_ones_become_powers() -> None:
    assert [number(value) for value in (1234.5, 12.345, 0.012345, 0.00012345)] == [
        "1,234",
        "12.3",
        "0.0123",
        "1.23 × 10⁻⁴",
    ]


def test_a_rate_stands_with_its_counts() -> None:
    assert rate_cell(Rate.of(41, 48)) == '85.4% <span class="of">41 of 48</span>'
    assert rate_cell(Rate.of(None, 48)) == NOT_MEASURED
    assert rate_cell(None) == NOT_MEASURED


def test_a_rate_over_nothing_is_not_measured_and_shows_why() -> None:
    cell = rate_cell(Rate.of(0, 0))
    assert NOT_MEASURED in cell
    assert "0 of 0" in cell
    assert "%" not in cell


def test_an_interval_tells_how_many_pairs_it_is_made_of() -> None:
    assert "n=12" in interval_cell(Interval(value=2.0, low=1.5, high=2.5, n=12))
    assert "n=12" in interval_cell(Interval(value=2.0, n=12))
    assert interval_cell(Interval(value=None, n=0)) == NOT_MEASURED


def test_a_negative_bound_has_a_minus_sign() -> None:
    assert interval_words(Interval(value=0, low=-1.5, high=2, n=3), " ms") == "95% interval −1.50 to 2.00 ms"
