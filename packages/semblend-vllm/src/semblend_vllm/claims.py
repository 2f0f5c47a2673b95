"""From a plan to what vLLM understands: a claimed range, what is loaded into it, and the rows that fill the rest.

vLLM takes a claim in whole blocks from the exact prefix on, and computes everything behind it in one piece. Inside the
claim spans and rows may begin and end anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from semblend_core import Plan, Span, joined_runs
from semblend_core.recompute import MeanShift

Rows: TypeAlias = tuple[tuple[int, int], ...]
"""[start, end) of tokens that are computed, in order and apart."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One request's share of a step."""

    start: int
    """The exact prefix that the engine has itself."""
    end: int
    """A multiple of the block size; the engine computes the prompt from here on."""
    spans: tuple[Span, ...]
    """Loaded before the forward. Rows inside them are written over by it."""
    rows: Rows
    """What the forward computes inside the claim."""
    correction: MeanShift | None = None
    """How the forward corrects what it does not compute."""
    steps: tuple[Rows, ...] = ()
    """The rows by steps, where one step cannot hold them; empty: all are in the step that admits the request."""

    @property
    def row_tokens(self) -> int:
        return sum(end - start for start, end in self.rows)

    @property
    def reused_tokens(self) -> int:
        """Tokens of the claim that are loaded and not computed."""
        return self.end - self.start - self.row_tokens

    @property
    def first_approximate(self) -> int:
        return self.spans[0].target_start


def claim_of(plan: Plan, block_size: int, correction: MeanShift | None = None) -> Claim | None:
    """The longest claim that saves anything; None where the plan saves nothing at whole blocks."""
    # Whole blocks before the last stretch of computed tokens, which the engine does in one piece anyway.
    end = plan.computed_tail // block_size * block_size
    spans = tuple(_clipped(span, end) for span in plan.spans if span.target_start < end)
    if not spans:
        return None
    # Rows that touch become one: each costs a place in the batch.
    rows = tuple(joined_runs((row.start, min(row.end, end)) for row in plan.rows if row.start < end))
    claim = Claim(plan.exact_prefix_tokens, end, spans, rows, correction)
    return claim if claim.reused_tokens > 0 else None


def over_steps(claim: Claim, most_tokens: int, most_rows: int) -> Claim:
    """The same claim; where one step cannot hold its rows, with as many in each as it can."""
    if claim.row_tokens <= most_tokens and len(claim.rows) <= most_rows:
        return claim
    steps: list[list[tuple[int, int]]] = [[]]
    left = most_tokens
    for start, end in claim.rows:
        while start < end:
            if not left or len(steps[-1]) == most_rows:
                steps.append([])
                left = most_tokens
            taken = min(left, end - start)
            steps[-1].append((start, start + taken))
            start, left = start + taken, left - taken
    return replace(claim, steps=tuple(map(tuple, steps)))


def within_rows(claim: Claim | None, most_tokens: int, most_rows: int, block_size: int) -> Claim | None:
    """As much of a claim as can be had with so many row tokens and rows in one step; the rest is computed."""
    if claim is None:
        return None
    tokens = 0
    for number, (start, end) in enumerate(claim.rows):
        tokens += end - start
        if tokens > most_tokens or number >= most_rows:
            return _cut(claim, start // block_size * block_size)
    return claim


def without_rows(claim: Claim | None, block_size: int) -> Claim | None:
    """What of a claim can be had by the connector's own contract: spans that continue the exact prefix."""
    return within_rows(claim, 0, 0, block_size)


def _cut(claim: Claim, end: int) -> Claim | None:
    spans = tuple(_clipped(span, end) for span in claim.spans if span.target_start < end)
    rows = tuple((row_start, min(row_end, end)) for row_start, row_end in claim.rows if row_start < end)
    if end <= claim.start or not spans:
        return None
    cut = Claim(claim.start, end, spans, rows, claim.correction)
    return cut if cut.reused_tokens > 0 else None


def _clipped(span: Span, end: int) -> Span:
    return span if span.target_end <= end else replace(span, length=end - span.target_start)
