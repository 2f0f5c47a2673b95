"""Runs as arrays are what their tuples are, and what a decision computes is what its plan's rows are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from semblend_core import Plan, Span
from semblend_core.contract import joined_runs
from semblend_core.recompute import QueryAttention, RotateOnly, SeamHead
from semblend_core.recompute.runs import Runs

MASKS = st.lists(st.booleans(), min_size=1, max_size=60).map(lambda each: np.array(each, np.bool_))


class Looking:
    """A probe that costs nothing and shows what it is given."""

    layers = 20

    def __init__(self, scores: np.ndarray) -> None:
        self._scores = scores

    def cost(self, layers: int) -> float:
        return 0.0

    def question_attention(self, layers: range, pooling: str) -> np.ndarray:
        return self._scores


@given(MASKS)
def test_runs_of_a_mask_cover_it(mask: np.ndarray) -> None:
    runs = Runs.of(mask)
    covered = [at for start, end in runs.as_pairs() for at in range(start, end)]
    assert covered == np.flatnonzero(mask).tolist()
    assert (runs.between > 0).all(), "those that touch are one"
    assert (runs.tokens, runs.count) == (len(covered), len(runs.as_pairs()))


@given(MASKS, st.integers(0, 70), st.integers(0, 70))
def test_they_end_and_are_joined_as_tuples_are(mask: np.ndarray, end: int, within: int) -> None:
    runs = Runs.of(mask)
    before = [(start, min(stop, end)) for start, stop in runs.as_pairs() if start < end]
    assert list(runs.before(end).as_pairs()) == before
    assert list(runs.before(end).joined(within).as_pairs()) == joined_runs(before, within)
    assert Runs.of_pairs(before).as_pairs() == tuple(before)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 90)), min_size=1, max_size=5),
    st.integers(0, 20),
    st.floats(0, 1),
    st.sampled_from([1, 4, 16]),
    st.integers(0, 2**32),
)
def test_what_a_decision_computes_is_what_its_plan_does(
    gaps_and_lengths: list[tuple[int, int]], question: int, budget: float, block: int, seed: int
) -> None:
    position, spans = 3, []
    for number, (gap, length) in enumerate(gaps_and_lengths):
        spans.append(Span(position + gap, f"d{number}", 5, length))
        position = spans[-1].target_end
    plan = Plan.over("r", position + question, 3, spans)
    probe = Looking(np.random.default_rng(seed).random(plan.prompt_tokens))
    for policy in (QueryAttention(8), SeamHead(), RotateOnly()):
        decided = policy.plan(plan, budget=budget, probe=probe, block=block)  # type: ignore[arg-type]
        rows = [(row.start, row.end) for row in decided.plan.rows]
        assert list(decided.computed.as_pairs()) == joined_runs(rows)
        assert decided.computed.starts[-1] == decided.plan.computed_tail
        assert decided.recomputed_tokens == decided.computed.tokens - plan.computed_tokens
