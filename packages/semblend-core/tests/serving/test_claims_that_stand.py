"""Claims whose end an engine was told before it probes: their rows change, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend_core import Plan, Span
from semblend_core.serving import Claim, claim_by_scores, claim_by_tier, rows_by_scores

LAYERS = 20


def plan_of(lengths: list[int], between: int, question: int) -> Plan:
    position, spans = 5, []
    for number, length in enumerate(lengths):
        spans.append(Span(position + between, f"d{number}", 7 * number, length))
        position = spans[-1].target_end
    return Plan.over("r", position + question, 5, spans, [])


def claim_for(plan: Plan, page_size: int, join_within: int = 0) -> Claim | None:
    how: Any = {"limit": None, "correcting": True, "probe_layers": LAYERS, "block": 8, "join_within": join_within}
    claim = claim_by_tier(plan, "balanced", page_size, **how)
    return claim if isinstance(claim, Claim) and claim.probing is not None else None


def computed_in(claim: Claim) -> set[int]:
    return {at for start, end in claim.rows for at in range(start, end)}


def test_a_last_passage_that_is_all_seam_can_be_looked_at_too() -> None:
    plan = plan_of([600, 600, 600, 40], between=3, question=20)
    claim = claim_for(plan, 1)
    assert claim is not None
    assert claim.end == plan.spans[-1].target_start - 3, "without a probe all of it is computed"
    whole = claim.up_to_question(1)
    assert whole.spans == plan.spans
    assert computed_in(whole) == computed_in(claim) | set(range(claim.end, whole.end))
    scores = np.zeros(plan.prompt_tokens)
    scores[700:800] = 1
    chosen = rows_by_scores(whole, scores, most_rows=100)
    assert chosen is not None
    assert computed_in(chosen) >= set(range(704, 800))
    assert not computed_in(chosen) >= set(range(plan.spans[-1].target_start, whole.end)), "it need not be computed"


@pytest.mark.parametrize("join_within", [0, 16, 64, 128])
def test_rows_are_joined_only_as_far_as_the_tier_may_compute(join_within: int) -> None:
    plan = plan_of([4000, 4000, 4000, 4000], between=30, question=80)
    claim = claim_for(plan, 1, join_within)
    assert claim is not None
    scores = np.random.default_rng(1).exponential(size=plan.prompt_tokens)  # Here and there, all over the prompt.
    plain = claim_for(plan, 1)
    assert plain is not None
    unjoined = rows_by_scores(plain, scores, most_rows=1000)
    for chosen in (rows_by_scores(claim, scores, most_rows=1000), claim_by_scores(claim, scores, 1, most_rows=1000)):
        assert chosen is not None, "a probe that has shown something is not in vain"
        assert chosen.row_tokens <= claim.most_row_tokens
        assert unjoined is not None
        assert len(chosen.rows) <= len(unjoined.rows)


@given(
    st.lists(st.integers(64, 900), min_size=2, max_size=8),
    st.integers(0, 9),
    st.integers(1, 40),
    st.sampled_from((1, 16)),
    st.integers(1, 200),
    st.integers(0, 2**32),
)
def test_whatever_is_chosen_fits_where_the_claim_stood(
    lengths: list[int], between: int, question: int, page_size: int, most_rows: int, seed: int
) -> None:
    plan = plan_of(lengths, between, question)
    made = claim_for(plan, page_size)
    if made is None:
        return
    claim = made.up_to_question(page_size)
    assert claim.end == plan.computed_tail // page_size * page_size
    assert claim.row_tokens <= claim.most_row_tokens
    chosen = rows_by_scores(claim, np.random.default_rng(seed).random(plan.prompt_tokens), most_rows)
    if chosen is None:
        return
    assert (chosen.start, chosen.end, chosen.spans) == (claim.start, claim.end, claim.spans)
    assert chosen.probing is None
    assert len(chosen.rows) <= most_rows
    assert chosen.row_tokens <= claim.most_row_tokens
    covered = {at for span in claim.spans for at in range(span.target_start, span.target_end)}
    assert covered | computed_in(chosen) == set(range(claim.start, claim.end)), "a token has no KV"
