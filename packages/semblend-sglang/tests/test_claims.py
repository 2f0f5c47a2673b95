"""From plans to what one of SGLang's batches can hold of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from semblend_core import Plan, Row, RowKind, Span
from semblend_core.serving import Claim
from semblend_core.serving import claim_of as whole_claim_of

NO_LIMIT = 10**6


def claim_of(plan: Plan, page_size: int, most_tokens: int, most_rows: int) -> Claim | None:
    whole = whole_claim_of(plan, page_size)
    fitting = None if whole is None else whole.within(most_tokens, most_rows, page_size)
    return None if fitting is None else fitting.moved_only()


def plan(prompt: int, exact: int, spans: list[Span], recomputed: list[Row] | None = None) -> Plan:
    return Plan.over("r", prompt, exact, spans, recomputed or [])


def test_a_gap_in_front_is_a_row_and_the_tail_is_the_requests_own() -> None:
    claim = claim_of(plan(200, 0, [Span(60, "d", 40, 100)]), 1, NO_LIMIT, NO_LIMIT)
    assert claim == Claim(0, 160, (Span(60, "d", 40, 100),), ((0, 60),))
    assert (claim.row_tokens, claim.reused_tokens, claim.length) == (60, 100, 160)


def test_a_seam_joins_the_gap_in_front_of_it_and_is_not_moved() -> None:
    seam = [Row(60, 16, RowKind.SEAM)]
    claim = claim_of(plan(200, 0, [Span(60, "d", 40, 100)], seam), 1, NO_LIMIT, NO_LIMIT)
    assert claim is not None
    assert claim.rows == ((0, 76),)
    assert claim.spans == (Span(76, "d", 56, 84),)


def test_a_claim_ends_with_a_whole_page() -> None:
    claim = claim_of(plan(200, 16, [Span(60, "d", 40, 105)]), 16, NO_LIMIT, NO_LIMIT)
    assert claim is not None
    assert (claim.start, claim.end) == (16, 160)
    assert claim.spans == (Span(60, "d", 40, 100),)


def test_rows_that_find_no_room_shorten_the_claim() -> None:
    spans = [Span(50, "d", 0, 100), Span(200, "d", 100, 100)]
    whole = plan(320, 0, spans)
    for most_tokens, most_rows in ((60, NO_LIMIT), (NO_LIMIT, 1)):
        claim = claim_of(whole, 1, most_tokens, most_rows)
        assert claim is not None
        assert (claim.end, claim.rows) == (150, ((0, 50),))


def test_nothing_is_claimed_where_nothing_is_left_to_reuse() -> None:
    assert claim_of(plan(40, 0, [Span(10, "d", 0, 12)]), 32, NO_LIMIT, NO_LIMIT) is None
    assert claim_of(plan(40, 0, [Span(10, "d", 0, 12)]), 1, 9, NO_LIMIT) is None


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    position = exact = draw(st.integers(0, 40))
    spans, rows = [], []
    for number in range(draw(st.integers(1, 5))):
        position += draw(st.integers(0, 30))
        length = draw(st.integers(1, 60))
        spans.append(Span(position, f"d{number % 2}", draw(st.integers(0, 500)), length))
        seam = draw(st.integers(0, length))
        if seam:
            rows.append(Row(position, seam, RowKind.SEAM))
        position += length
    return Plan.over("r", position + draw(st.integers(1, 30)), exact, spans, rows)


@given(plans(), st.sampled_from((1, 4, 16)), st.integers(1, 400), st.integers(1, 8))
def test_every_token_of_a_claim_is_either_moved_or_computed(
    whole: Plan, page_size: int, most_tokens: int, most_rows: int
) -> None:
    claim = claim_of(whole, page_size, most_tokens, most_rows)
    if claim is None:
        return
    moved = [place for span in claim.spans for place in range(span.target_start, span.target_end)]
    computed = [place for start, end in claim.rows for place in range(start, end)]
    assert sorted(moved + computed) == list(range(claim.start, claim.end))
    assert claim.end % page_size == 0
    assert claim.end < whole.prompt_tokens
    assert claim.row_tokens <= most_tokens
    assert len(claim.rows) <= most_rows
    planned = {place for row in whole.rows for place in range(row.start, row.end)}
    assert not planned & set(moved), "a token that the policy wants fresh is moved"
    for span in claim.spans:
        assert any(
            span.donor_id == of.donor_id and span.shift == of.shift and of.target_start <= span.target_start
            for of in whole.spans
        )
