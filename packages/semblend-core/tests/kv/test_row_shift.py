"""Mean shift with rows weighed for each token: near and like rows count more, and no sink is spread over a span."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs the extra `gpu`")

import torch
from torch import Tensor

from semblend_core import Span
from semblend_core.kv import MeanShiftCorrection, Rotation, pieces, row_shift
from semblend_core.kv.row_shift import RowShift
from semblend_core.recompute import MeanShift

TOKENS, HEADS, DIM = 200, 2, 16
SPANS = [Span(10, "a", 300, 90), Span(110, "b", 5, 60)]
ROWS = np.array([0, 12, 13, 20, 33, 41, 58, 90, 112, 120, 121, 140, 165, 190])
TURNING = Rotation.from_config({"model_type": "llama", "head_dim": DIM, "rope_theta": 10_000.0})


class Moved:
    """Relocated KV, and what the rows hold after a change that ``by`` gives for each position, in frame 0."""

    def __init__(self, by: Tensor, keys: Tensor | None = None, values: Tensor | None = None) -> None:
        torch.manual_seed(3)
        self.old_keys = torch.randn(TOKENS, HEADS, DIM) if keys is None else keys
        self.old_values = torch.randn(TOKENS, HEADS, DIM) if values is None else values
        self.keys, self.values = self.old_keys.clone(), self.old_values.clone()
        self.keys[ROWS] += TURNING.rotate(by[ROWS], ROWS)
        self.values[ROWS] += by[ROWS]

    def corrected(self, shift: MeanShift) -> tuple[Tensor, Tensor]:
        """How far K, in frame 0, and V of each position were moved."""
        correction = MeanShiftCorrection(shift, SPANS, ROWS, TURNING, (self.old_keys, self.old_values))
        correction.apply(0, self.keys, self.values, self.old_keys[ROWS], self.old_values[ROWS])
        moved = TURNING.rotate(self.keys - self.old_keys, -np.arange(TOKENS))
        return moved, self.values - self.old_values


def alike_everywhere() -> Tensor:
    return torch.randn(1, HEADS, DIM, generator=torch.Generator().manual_seed(1)).expand(TOKENS, -1, -1).clone()


def others_of(span: Span) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.setdiff1d(np.arange(span.target_start, span.target_end), ROWS)


@pytest.mark.parametrize("shift", [MeanShift(1.0, reach=16), MeanShift(1.0, likeness=5), MeanShift(1.0, 4, 1.0, 8, 2)])
def test_a_change_that_is_the_same_everywhere_is_repaired_exactly(shift: MeanShift) -> None:
    change = alike_everywhere()
    for moved in Moved(change).corrected(shift):
        for span in SPANS:
            inside = np.arange(span.target_start, span.target_end)
            torch.testing.assert_close(moved[inside], change[inside], rtol=0, atol=2e-5)


def test_keys_and_values_have_strengths_of_their_own() -> None:
    change = alike_everywhere()
    others = others_of(SPANS[0])
    keys, values = Moved(change).corrected(MeanShift(0.6, value_strength=0.25, reach=16))
    torch.testing.assert_close(keys[others], 0.6 * change[others], rtol=0, atol=2e-5)
    torch.testing.assert_close(values[others], 0.25 * change[others], rtol=0, atol=2e-5)


def test_a_token_follows_the_rows_that_are_near() -> None:
    """The first half of a span changes one way, the second the other way."""
    change = alike_everywhere()
    change[60:] *= -1
    _, values = Moved(change).corrected(MeanShift(1.0, reach=4))
    torch.testing.assert_close(values[22], change[22], rtol=0, atol=0.05)
    torch.testing.assert_close(values[95], change[95], rtol=0, atol=0.05)


def test_a_token_follows_the_rows_that_are_like_it() -> None:
    """Two kinds of tokens alternate, and each changes in its own way."""
    torch.manual_seed(5)
    kinds = torch.randn(2, HEADS, DIM)
    kind = torch.arange(TOKENS) % 2
    change = alike_everywhere() * torch.where(kind == 0, 1.0, -1.0)[:, None, None]
    keys = TURNING.rotate(kinds[kind], np.arange(TOKENS))
    _, values = Moved(change, keys, kinds[kind]).corrected(MeanShift(1.0, likeness=6))
    others = others_of(SPANS[0])
    torch.testing.assert_close(values[others], change[others], rtol=0, atol=0.01)


def test_a_row_that_became_a_sink_is_not_spread_over_its_span() -> None:
    change = alike_everywhere()
    change[33] *= 1000
    _, values = Moved(change).corrected(MeanShift(1.0, reach=16))
    torch.testing.assert_close(values[34], change[34], rtol=0, atol=2e-5)


def test_outside_the_spans_and_at_rows_nothing_moves() -> None:
    moved = Moved(alike_everywhere())
    before = moved.keys.clone(), moved.values.clone()
    moved.corrected(MeanShift(1.0, reach=16, likeness=3))
    kept = np.setdiff1d(np.arange(TOKENS), np.concatenate([others_of(span) for span in SPANS]))
    assert torch.equal(moved.keys[kept], before[0][kept])
    assert torch.equal(moved.values[kept], before[1][kept])


def test_spans_with_too_few_rows_stay_and_no_spans_at_all_are_fine() -> None:
    moved = Moved(alike_everywhere())
    _, values = moved.corrected(MeanShift(1.0, min_rows=6, reach=16))
    second = others_of(SPANS[1])  # Five rows fall into it.
    assert torch.equal(moved.values[second], moved.old_values[second])
    assert float(values[others_of(SPANS[0])].abs().min(dim=0).values.sum()) > 0
    nothing = MeanShiftCorrection(MeanShift(reach=16), [], ROWS, TURNING, (moved.keys, moved.values))
    nothing.apply(0, moved.keys, moved.values, moved.old_keys[ROWS], moved.old_values[ROWS])


def test_where_weights_would_be_too_many_fewer_rows_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    change = alike_everywhere()
    monkeypatch.setattr(row_shift, "MOST_WEIGHTS", 400)
    monkeypatch.setattr(pieces, "LEAST_ASKED", 2)
    _, values = Moved(change).corrected(MeanShift(1.0, reach=16))
    others = others_of(SPANS[0])
    torch.testing.assert_close(values[others], change[others], rtol=0, atol=2e-5)


@pytest.mark.parametrize("broken", [float("inf"), float("nan")])
def test_what_is_not_finite_in_one_row_is_not_spread_over_its_span(broken: float) -> None:
    moved = Moved(alike_everywhere())
    moved.values[41, 0, 3] = broken
    moved.corrected(MeanShift(1.0, reach=16))
    for span in SPANS:
        assert moved.values[others_of(span)].isfinite().all()


def test_beside_a_long_span_a_short_one_is_still_asked_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first row has ceased to be a sink. By itself, or beside one other, it would look as if that were usual."""
    monkeypatch.setattr(row_shift, "MOST_WEIGHTS", 40_000)
    spans, rows = [Span(0, "long", 0, 4000), Span(4000, "short", 0, 100)], np.r_[0:1000, 4000:4024]
    kv = torch.randn(2, 4100, 1, DIM)
    moved = kv.clone()
    moved[:, rows] += 0.1
    moved[1, 4000] += 5.0
    shift = RowShift(MeanShift(1.0, reach=16, likeness=8.0), spans, rows, TURNING, (kv[0], kv[1]))
    shift.apply(0, moved[0], moved[1], kv[0][rows], kv[1][rows])
    assert [each.size for each in shift.asked] == [32, 24]
    change = (moved - kv)[1, 4024:]
    torch.testing.assert_close(change, torch.full_like(change, 0.1), rtol=0, atol=2e-5)


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=12), st.integers(1, 10**6))
def test_rows_are_left_out_where_there_are_many_and_evenly(spans: list[tuple[int, int]], most: int) -> None:
    made = [
        pieces.Piece(0, rows + others, 0, np.arange(rows), np.arange(rows, rows + others)) for rows, others in spans
    ]
    asked = pieces.asked_rows(made, most)
    fewest = min(
        (which.size for each, which in zip(made, asked, strict=True) if which.size < each.rows.size), default=0
    )
    for each, which in zip(made, asked, strict=True):
        assert which.size >= min(each.rows.size, pieces.LEAST_ASKED)
        assert (which[0], which[-1]) == (0, each.rows.size - 1)
        assert np.ptp(np.diff(which)) <= 1 if which.size > 1 else True
        assert which.size == each.rows.size or each.rows.size > fewest, "short spans are asked in full"
    weights = sum(each.length * which.size for each, which in zip(made, asked, strict=True))
    assert weights <= max(most, sum(each.length for each in made) * pieces.LEAST_ASKED)
    assert not fewest or weights > most - sum(each.length for each in made), "no more are left out than need be"


def test_a_row_that_is_named_twice_is_one_row() -> None:
    rows = np.sort(np.concatenate([ROWS, ROWS[3:6]]))
    moved = Moved(alike_everywhere())
    middle = moved.old_keys, moved.old_values
    correction = MeanShiftCorrection(MeanShift(1.0, reach=16), SPANS, rows, TURNING, middle)
    correction.apply(0, moved.keys, moved.values, moved.old_keys[rows], moved.old_values[rows])
    inside = np.arange(10, 100)
    torch.testing.assert_close(moved.values[inside], moved.old_values[inside] + alike_everywhere()[inside])
