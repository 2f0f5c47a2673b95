"""Runs of positions: joined where they touch, and where the computed end of a prompt begins."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from semblend_core import Plan, Row, RowKind, Span
from semblend_core.contract import joined_runs

RUNS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda run: (run[0], run[0] + run[1])))


@given(RUNS)
def test_joined_runs_hold_the_same_positions_in_order_and_apart(runs: list[tuple[int, int]]) -> None:
    joined = joined_runs(runs)
    assert {at for start, end in joined for at in range(start, end)} == {at for run in runs for at in range(*run)}
    assert all(before[1] < after[0] for before, after in pairwise(joined))


def test_the_computed_tail_is_everything_behind_the_last_reused_token() -> None:
    span = Span(10, "d", 0, 50)
    assert Plan.over("r", 100, 0, [span]).computed_tail == 60
    assert Plan.over("r", 60, 0, [span]).computed_tail == 59, "the last token is always computed"
    assert Plan.over("r", 100, 0, [span], [Row(52, 8, RowKind.SEAM)]).computed_tail == 52
    assert Plan.over("r", 100, 0, [span], [Row(40, 5, RowKind.SEAM)]).computed_tail == 60
