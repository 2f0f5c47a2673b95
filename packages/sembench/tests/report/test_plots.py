from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sembench.report.svg import BOTTOM, TOP, Axis, tick_label
from sembench.report.transforms import place_labels

positive = st.floats(1e-9, 1e9)


@given(st.lists(positive, min_size=1))
def test_every_value_lies_on_the_axis_that_starts_at_zero(values: list[float]) -> None:
    axis = Axis.from_zero(max(values))
    assert all(TOP - 0.01 <= axis.y(value) <= BOTTOM + 0.01 for value in values)
    assert 2 <= len(axis.ticks) <= 6
    assert axis.ticks[0] == 0


@given(st.lists(positive, min_size=1))
def test_every_value_lies_on_the_logarithmic_axis(values: list[float]) -> None:
    axis = Axis.logarithm(values)
    assert all(TOP - 0.01 <= axis.y(value) <= BOTTOM + 0.01 for value in values)
    assert all(TOP - 0.01 <= axis.y(tick) <= BOTTOM + 0.01 for tick in axis.ticks)


@given(st.lists(positive, min_size=2, unique=True))
def test_a_larger_value_is_never_lower(values: list[float]) -> None:
    for axis in (Axis.from_zero(max(values)), Axis.logarithm(values)):
        heights = [axis.y(value) for value in sorted(values)]
        assert heights == sorted(heights, reverse=True)


def test_tick_labels_are_short() -> None:
    assert [tick_label(value) for value in (0, 2, 0.25, 1500, 0.001, 1e-4, 2e-5)] == [
        "0",
        "2",
        "0.25",
        "1,500",
        "0.001",
        "10⁻⁴",
        "2·10⁻⁵",
    ]


@given(st.lists(st.tuples(st.floats(4, 96), st.floats(TOP, BOTTOM)), max_size=13))
def test_numbers_in_the_scatter_stay_inside_and_off_each_other(places: list[tuple[float, float]]) -> None:
    rows = place_labels(places)
    assert all(TOP <= row <= BOTTOM for row in rows)
    crowded = len(places) > 8  # so many points in one place leave no room
    for (a, (x, _)), (b, (other, _)) in itertools.combinations(zip(rows, places, strict=True), 2):
        assert crowded or abs(x - other) / 100 * 280 >= 16 or abs(a - b) >= 13 - 1e-6
