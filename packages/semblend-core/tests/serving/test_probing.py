"""Rows by a probe: a first step shows where the question looks, and rows are chosen there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core import Plan, Span
from semblend_core.recompute import ROW_SHIFT
from semblend_core.serving import Claim, WorkerNews, claim_by_scores, claim_by_tier
from semblend_core.serving.probing import MOST_QUESTION_TOKENS
from semblend_core.testing import Lines

BLOCK, LAYERS = 16, 20


def plan_of(*spans: Span, prompt_tokens: int) -> Plan:
    return Plan.over("r", prompt_tokens, 0, list(spans), [])


def passages(count: int = 4, length: int = 400, between: int = 10, question: int = 40) -> Plan:
    """So many, each of another donor."""
    spans = [Span(between + number * (length + between), f"d{number}", 7, length) for number in range(count)]
    return plan_of(*spans, prompt_tokens=spans[-1].target_end + question)


def claim_for(plan: Plan, **options: object) -> Claim:
    asked = {"limit": None, "correcting": True, "probe_layers": LAYERS, **options}
    claim = claim_by_tier(plan, "balanced", BLOCK, **asked)  # type: ignore[arg-type]
    assert isinstance(claim, Claim)
    return claim


def computed_in(claim: Claim) -> np.ndarray:
    return np.array([at for start, end in claim.rows for at in range(start, end)])


def test_rows_are_where_the_question_looks() -> None:
    plan = passages()
    claim = claim_for(plan)
    scores = np.zeros(plan.prompt_tokens, np.float16)
    looked_at = np.arange(1050, 1110)  # Behind all of its passage's seam.
    scores[looked_at] = 1
    chosen = claim_by_scores(claim, scores, BLOCK, most_rows=100)
    assert not np.isin(looked_at, computed_in(claim)).any()
    assert np.isin(looked_at, computed_in(chosen)).all()
    assert claim.correction is not None
    assert chosen.correction == ROW_SHIFT, "rows that were looked at say more of the rest than seams do"
    assert chosen.probing is None


def test_the_first_step_computes_gaps_and_question() -> None:
    plan = passages(question=40)
    probing = claim_for(plan).probing
    assert probing is not None
    assert probing.rows == tuple((row.start, row.end) for row in plan.rows)
    assert probing.question == (plan.prompt_tokens - 40, plan.prompt_tokens)
    assert 0 <= probing.layers.start < probing.layers.stop <= LAYERS


def test_only_the_end_of_a_long_question_is_scored() -> None:
    plan = passages(length=3000, question=500)
    probing = claim_for(plan).probing
    assert probing is not None
    assert probing.question == (plan.prompt_tokens - MOST_QUESTION_TOKENS, plan.prompt_tokens)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(plan_of(Span(30, "d", 0, 900), prompt_tokens=960), id="one document"),
        pytest.param(passages(question=2000), id="gaps that cost more than the tier may spend"),
    ],
)
def test_no_probe_for(plan: Plan) -> None:
    assert claim_for(plan).probing is None


def test_no_probe_where_the_engine_cannot_look() -> None:
    assert claim_for(passages(), probe_layers=None).probing is None


def test_a_claim_that_is_cut_is_not_probed() -> None:
    claim = claim_for(passages())
    cut = claim.within(claim.row_tokens - 1, 99, BLOCK)
    assert cut is not None
    assert cut.probing is None


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(80, 500), st.integers(0, 30), st.sampled_from([1, 8, 16]), st.integers(0, 2**32))
def test_every_token_is_loaded_or_computed_whatever_was_seen(
    count: int, length: int, between: int, block: int, seed: int
) -> None:
    plan = passages(count, length, between)
    claim = claim_for(plan, block=block)
    if claim.probing is None:
        return
    scores = np.random.default_rng(seed).random(plan.prompt_tokens).astype(np.float16)
    chosen = claim_by_scores(claim, scores, BLOCK, most_rows=10_000)
    loaded = {at for span in claim.probing.plan.spans for at in range(span.target_start, span.target_end)}
    computed = set(computed_in(chosen).tolist())
    assert set(range(chosen.start, chosen.end)) <= loaded | computed
    assert chosen.start == claim.start
    assert chosen.end % BLOCK == 0
    assert chosen.end < plan.prompt_tokens
    spent = len(computed) - sum(row.length for row in plan.rows[:-1])
    assert spent <= claim.probing.choice.budget * sum(span.length for span in plan.spans)


@pytest.mark.parametrize("most_rows", [300, 120, 40, 20])
def test_where_there_is_room_for_few_rows_longer_runs_are_chosen(most_rows: int) -> None:
    plan = passages(count=10, length=600)
    claim = claim_for(plan, block=4)
    assert claim.probing is not None
    scores = np.random.default_rng(3).random(plan.prompt_tokens).astype(np.float16)
    chosen = claim_by_scores(claim, scores, BLOCK, most_rows)
    assert len(chosen.rows) <= most_rows
    spent = chosen.row_tokens - sum(row.length for row in plan.rows[:-1])
    assert 0.8 < spent / (claim.probing.choice.budget * plan.reused_tokens) <= 1, "what lies between is not computed"


def test_a_search_for_rows_goes_over_those_of_its_result_only() -> None:
    def lines_and_rows(length: int) -> tuple[int, int]:
        plan = passages(count=10, length=length)
        claim = claim_for(plan, block=4, join_within=64)
        scores = np.random.default_rng(3).random(plan.prompt_tokens).astype(np.float16)
        lines = Lines()
        with lines.counted():
            chosen = claim_by_scores(claim, scores, BLOCK, most_rows=length // 20)
        return lines.count, len(chosen.rows)

    (lines, rows), (more_lines, more_rows) = lines_and_rows(600), lines_and_rows(2400)
    assert more_rows > 2 * rows
    assert more_lines - lines <= 3 * (more_rows - rows)


def test_ranks_see_their_own_heads() -> None:
    first, second = np.array([0.5, 0.0], np.float16), np.array([0.25, 1.0], np.float16)
    joined = WorkerNews(scores={"r": first, "blind": first}).joined(WorkerNews(scores={"r": second, "blind": None}))
    assert joined.scores["r"] is not None
    assert joined.scores["r"].tolist() == [0.75, 1.0]
    assert joined.scores["blind"] is None
