"""From a plan to what SGLang understands: a longer prefix, what is moved into it, and the rows that fill the rest.

SGLang computes a prompt from the end of its prefix on, in one piece. SemBlend makes that prefix reach up to the last
reusable token. Inside it spans and rows may begin and end anywhere; it ends with a whole page.
"""

from __future__ import annotations

from dataclasses import dataclass

from semblend_core import Plan, Span, joined_runs

Run = tuple[int, int]
"""[start, end) in the prompt."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one request gets in front of what it computes itself."""

    start: int
    """End of the exact prefix, which is SGLang's own."""
    end: int
    """A multiple of the page size; the request computes its prompt from here on."""
    spans: tuple[Span, ...]
    """Moved before the forward: everything in the claim that no row computes."""
    rows: tuple[Run, ...]
    """Computed in the same forward, in order and apart."""

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def row_tokens(self) -> int:
        return sum(end - start for start, end in self.rows)

    @property
    def reused_tokens(self) -> int:
        return sum(span.length for span in self.spans)

    @property
    def donor_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(span.donor_id for span in self.spans))


def claim_of(plan: Plan, page_size: int, most_row_tokens: int, most_rows: int) -> Claim | None:
    """The longest claim whose rows fit into one batch; None where nothing is left to reuse."""
    start = plan.exact_prefix_tokens
    end = _end_of_claim(plan, most_row_tokens, most_rows) // page_size * page_size
    # Rows that touch become one: each is a sequence of the batch.
    rows = tuple(joined_runs((row.start, min(row.end, end)) for row in plan.rows if row.start < end))
    spans = tuple(piece for span in plan.spans for piece in _without(span, rows, end))
    if not spans:
        return None
    return Claim(start, end, spans, rows)


def _end_of_claim(plan: Plan, most_row_tokens: int, most_rows: int) -> int:
    """Before the last stretch of computed tokens, and before the first row that finds no room."""
    end = plan.computed_tail
    room = most_row_tokens
    for number, row in enumerate(plan.rows):
        if row.start >= end:
            break
        room -= row.length
        if room < 0 or number >= most_rows:
            return row.start
    return end


def _without(span: Span, rows: tuple[Run, ...], end: int) -> list[Span]:
    """The parts of ``span`` before ``end`` that no row computes."""
    pieces, position, limit = [], span.target_start, min(span.target_end, end)
    for row_start, row_end in (*rows, (limit, limit)):
        if row_end <= position and row_start < limit:
            continue
        stop = min(row_start, limit)
        if stop > position:
            pieces.append(Span(position, span.donor_id, position - span.shift, stop - position))
        position = max(position, row_end)
        if position >= limit:
            break
    return pieces
