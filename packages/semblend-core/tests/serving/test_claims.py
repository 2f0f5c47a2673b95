"""A claim covers whole blocks, and inside it every token is loaded or computed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core import Plan, Row, RowKind, Span
from semblend_core.serving import claim_of, take_rows

BLOCK = 16


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    exact = draw(st.integers(0, 4)) * BLOCK
    position, spans = exact, []
    for _ in range(draw(st.integers(1, 4))):
        start = position + draw(st.integers(0, 40))
        length = draw(st.integers(1, 90))
        spans.append(Span(start, f"d{draw(st.integers(0, 2))}", draw(st.integers(0, 500)), length))
        position = start + length
    prompt = position + draw(st.integers(0, 50))
    inside = []
    for span in spans:
        seam = draw(st.integers(0, span.length))
        if seam:
            inside.append(Row(span.target_start, seam, RowKind.SEAM))
    return Plan.over("r", max(prompt, position), exact, spans, inside)


@settings(deadline=None)  # A busy machine is no fault of the code.
@given(plans())
def test_every_token_of_a_claim_is_loaded_or_computed(plan: Plan) -> None:
    claim = claim_of(plan, BLOCK)
    if claim is None:
        return
    loaded = {at for span in claim.spans for at in range(span.target_start, span.target_end)}
    computed = {at for start, end in claim.rows for at in range(start, end)}
    assert set(range(claim.start, claim.end)) <= loaded | computed
    assert len(loaded - computed) == claim.reused_tokens


@settings(deadline=None)  # A busy machine is no fault of the code.
@given(plans())
def test_a_claim_ends_at_a_block_and_leaves_the_last_token_to_the_engine(plan: Plan) -> None:
    claim = claim_of(plan, BLOCK)
    if claim is None:
        return
    assert claim.end % BLOCK == 0
    assert claim.start < claim.end < plan.prompt_tokens
    assert all(claim.start <= start < end <= claim.end for start, end in claim.rows)
    assert all(before[1] < after[0] for before, after in zip(claim.rows, claim.rows[1:], strict=False))


@settings(deadline=None)  # A busy machine is no fault of the code.
@given(plans())
def test_spans_keep_their_shift_and_end_inside_the_claim(plan: Plan) -> None:
    claim = claim_of(plan, BLOCK)
    if claim is None:
        return
    shifts = {span.target_start: span.shift for span in plan.spans}
    assert all(span.shift == shifts[span.target_start] and span.target_end <= claim.end for span in claim.spans)


@settings(deadline=None)  # A busy machine is no fault of the code.
@given(plans(), st.integers(1, 120), st.integers(0, 4))
def test_a_claim_can_be_cut_to_what_a_step_holds(plan: Plan, tokens: int, rows: int) -> None:
    whole = claim_of(plan, BLOCK)
    if whole is None:
        return
    cut = whole.within(tokens, rows, BLOCK)
    if cut is None:
        return
    assert cut.row_tokens <= tokens
    assert len(cut.rows) <= rows
    assert cut.end <= whole.end
    assert cut.end % BLOCK == 0
    loaded = {at for span in cut.spans for at in range(span.target_start, span.target_end)}
    computed = {at for start, end in cut.rows for at in range(start, end)}
    assert set(range(cut.start, cut.end)) == loaded | computed
    assert cut.reused_tokens > 0


@settings(deadline=None)  # A busy machine is no fault of the code.
@given(plans(), st.integers(1, 60), st.integers(1, 3))
def test_rows_over_several_steps_are_the_same_rows(plan: Plan, tokens: int, rows: int) -> None:
    whole = claim_of(plan, BLOCK)
    if whole is None:
        return
    computed, left = [], whole.rows
    while left:
        step, left = take_rows(left, tokens, rows)
        assert step
        assert len(step) <= rows
        assert sum(end - start for start, end in step) <= tokens
        computed += [at for start, end in step for at in range(start, end)]
    assert computed == [at for start, end in whole.rows for at in range(start, end)]


@settings(deadline=None)  # A busy machine is no fault of the code.
@given(plans(), st.integers(1, 4))
def test_fewer_rows_compute_at_least_the_same(plan: Plan, most: int) -> None:
    whole = claim_of(plan, BLOCK)
    if whole is None:
        return
    fewer = whole.with_rows(most)
    assert len(fewer.rows) == min(most, len(whole.rows))
    computed = {at for start, end in fewer.rows for at in range(start, end)}
    assert computed >= {at for start, end in whole.rows for at in range(start, end)}
    assert fewer is whole or computed <= set(range(whole.rows[0][0], whole.rows[-1][1]))


@settings(deadline=None)  # A busy machine is no fault of the code.
@given(plans())
def test_cut_to_what_no_row_computes_spans_hold_what_is_reused_and_nothing_else(plan: Plan) -> None:
    whole = claim_of(plan, BLOCK)
    if whole is None:
        return
    moved = whole.moved_only()
    loaded = [at for span in moved.spans for at in range(span.target_start, span.target_end)]
    computed = {at for start, end in moved.rows for at in range(start, end)}
    assert len(loaded) == len(set(loaded)) == whole.reused_tokens
    assert not computed & set(loaded)
    shift_of = {at: span.shift for span in whole.spans for at in range(span.target_start, span.target_end)}
    assert all(shift_of[at] == span.shift for span in moved.spans for at in range(span.target_start, span.target_end))


@settings(deadline=None)  # A busy machine is no fault of the code.
@given(plans())
def test_without_rows_only_what_continues_the_exact_prefix_is_claimed(plan: Plan) -> None:
    whole = claim_of(plan, BLOCK)
    claim = None if whole is None else whole.within(0, 0, BLOCK)
    if claim is None:
        return
    assert claim.rows == ()
    assert claim.spans[0].target_start == claim.start == plan.exact_prefix_tokens


def test_a_claim_that_fits_is_left_as_it_is() -> None:
    claim = claim_of(Plan.over("r", 1000, 0, [Span(61, "d", 48, 875)]), BLOCK)
    assert claim is not None
    assert claim.within(61, 1, BLOCK) is claim
    assert claim.within(60, 1, BLOCK) is None


def test_a_document_behind_a_new_instruction() -> None:
    plan = Plan.over("r", 1000, 0, [Span(61, "d", 48, 875)])
    claim = claim_of(plan, BLOCK)
    assert claim is not None
    assert (claim.start, claim.end, claim.rows) == (0, 928, ((0, 61),))
    assert claim.reused_tokens == 867


def test_a_plan_whose_spans_are_smaller_than_a_block_saves_nothing() -> None:
    assert claim_of(Plan.over("r", 40, 0, [Span(3, "d", 0, 9)]), BLOCK) is None
