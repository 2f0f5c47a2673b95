"""The mean-shift correction: what it repairs exactly, and what it leaves alone."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra `gpu`")

import torch

from semblend_core import Span
from semblend_core.kv import MeanShiftCorrection, Rotation
from semblend_core.recompute import MeanShift

TOKENS, HEADS, DIM = 120, 2, 16
SPANS = [Span(10, "a", 300, 50), Span(70, "b", 5, 40)]
ROWS = np.array([0, 3, 12, 20, 33, 41, 58, 72, 80, 81, 95, 119])


def rotation(**changed: object) -> Rotation:
    config = {
        "model_type": "llama",
        "hidden_size": DIM * 2,
        "num_attention_heads": 2,
        "rope_theta": 10_000.0,
        "max_position_embeddings": 1024,
    }
    return Rotation.from_config(config | changed)


def shifted_by_a_constant(turning: Rotation) -> tuple[torch.Tensor, ...]:
    """Relocated KV, and the true one: each span's differs by one vector, in the frame of position 0."""
    torch.manual_seed(3)
    keys, values = torch.randn(TOKENS, HEADS, DIM), torch.randn(TOKENS, HEADS, DIM)
    true_keys, true_values = keys.clone(), values.clone()
    for span in SPANS:
        inside = np.arange(span.target_start, span.target_end)
        change = torch.randn(1, HEADS, DIM).expand(inside.size, HEADS, DIM)
        true_keys[inside] += turning.rotate(change.clone(), inside)
        true_values[inside] += torch.randn(1, HEADS, DIM)
    return keys, values, true_keys, true_values


def corrected(strength: float, turning: Rotation, min_rows: int = 4) -> tuple[torch.Tensor, ...]:
    keys, values, true_keys, true_values = shifted_by_a_constant(turning)
    fresh_keys, fresh_values = keys.clone(), values.clone()
    fresh_keys[ROWS], fresh_values[ROWS] = true_keys[ROWS], true_values[ROWS]
    correction = MeanShiftCorrection(MeanShift(strength, min_rows), SPANS, ROWS, turning, (keys, values))
    correction.apply(0, fresh_keys, fresh_values, keys[ROWS], values[ROWS])
    return keys, values, true_keys, true_values, fresh_keys, fresh_values


@pytest.mark.parametrize("changed", [{}, {"model_type": "phi", "partial_rotary_factor": 0.5}])
def test_a_change_that_is_the_same_everywhere_is_repaired_exactly(changed: dict[str, object]) -> None:
    _, _, true_keys, true_values, keys, values = corrected(1.0, rotation(**changed))
    torch.testing.assert_close(keys, true_keys, rtol=0, atol=2e-5)
    torch.testing.assert_close(values, true_values, rtol=0, atol=2e-5)


def test_half_the_strength_goes_half_the_way_and_keeps_the_rows() -> None:
    old_keys, _, true_keys, _, keys, _ = corrected(0.5, rotation())
    torch.testing.assert_close(keys[ROWS], true_keys[ROWS], rtol=0, atol=0)
    others = np.setdiff1d(np.arange(10, 60), ROWS)
    torch.testing.assert_close(keys[others], (old_keys[others] + true_keys[others]) / 2, rtol=0, atol=2e-5)


def test_outside_the_spans_nothing_changes() -> None:
    old_keys, old_values, *_, keys, values = corrected(1.0, rotation())
    outside = np.r_[1:3, 4:10, 60:70, 110:119]
    assert torch.equal(keys[outside], old_keys[outside])
    assert torch.equal(values[outside], old_values[outside])


def test_a_span_with_too_few_rows_is_left_as_it_is() -> None:
    old_keys, *_, keys, _ = corrected(1.0, rotation(), min_rows=5)
    second = np.setdiff1d(np.arange(70, 110), ROWS)  # Four rows fall into it.
    assert torch.equal(keys[second], old_keys[second])
    first = np.setdiff1d(np.arange(10, 60), ROWS)
    assert not torch.equal(keys[first], old_keys[first])
