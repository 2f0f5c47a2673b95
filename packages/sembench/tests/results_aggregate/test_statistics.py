"""Medians and their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sembench.statistics as statistics
from sembench.schema import Interval
from sembench.statistics import bootstrap_median, mean, median, percentile

values = st.lists(st.floats(0.01, 100), min_size=2, max_size=30)


def test_nothing_has_no_figure() -> None:
    assert median([]) is None
    assert mean([]) is None
    assert percentile([], 99) is None
    assert bootstrap_median([]) == Interval(value=None, n=0)


def test_figures_worked_out_by_hand() -> None:
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 2, 3]) == 2.5
    assert percentile([0, 10], 99) == pytest.approx(9.9)
    assert mean([1, 2]) == 1.5


def test_one_value_has_no_interval() -> None:
    assert bootstrap_median([2.0]) == Interval(value=2.0, low=None, high=None, n=1)


@given(values)
def test_an_interval_holds_its_median_and_lies_within_the_values(sample: list[float]) -> None:
    interval = bootstrap_median(sample, resamples=200)
    assert interval.low is not None
    assert interval.high is not None
    assert min(sample) <= interval.low <= interval.high <= max(sample)
    assert interval.n == len(sample)


def test_the_same_seed_gives_the_same_interval() -> None:
    sample = np.random.default_rng(1).normal(2, 1, 40).tolist()
    assert bootstrap_median(sample) == bootstrap_median(sample)
    assert bootstrap_median(sample) != bootstrap_median(sample, seed=1)


def test_drawing_in_parts_draws_the_same_number(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = np.arange(10.0)
    monkeypatch.setattr(statistics, "_DRAWS_AT_ONCE", 25)
    assert statistics._resampled_medians(sample, 7, 0).shape == (7,)


def test_intervals_cover_the_true_median_about_as_often_as_they_say() -> None:
    source = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        interval = bootstrap_median(source.normal(5, 1, 41).tolist(), resamples=400)
        assert interval.low is not None
        assert interval.high is not None
        covered += interval.low <= 5 <= interval.high
    assert 180 <= covered <= 200


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_only_finite_values_are_taken(wrong: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        bootstrap_median([1.0, wrong])


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile([1.0], 101)
    with pytest.raises(ValueError, match="at least 1"):
        bootstrap_median([1.0, 2.0], resamples=0)
