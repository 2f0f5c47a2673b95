"""The steps that an engine will compute a prompt in: cold, by some spans, by a claim."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from semblend_core.contract import Plan, Span
from semblend_core.costs import Part, StepShape
from semblend_core.costs.steps import Integers
from semblend_core.serving.claims import Claim, Rows, take_rows

MOST_LIKELY_RUN = 6
"""Tokens of one row that a probe chooses, as a rule: attention gathers around words, and runs that touch are one."""


def cold_steps(start: int, end: int, step_tokens: int) -> list[StepShape]:
    """Of a prompt's tokens [start, end)."""
    return [StepShape.of([part]) for part in _pieces(start, end, step_tokens)]


def claim_steps(
    claim: Claim, prompt_tokens: int, step_tokens: int, *, step_rows: int | None = None, probes_apart: bool = True
) -> list[StepShape]:
    """A probe, if there is one; rows in front of the rest of the prompt, in their own steps if one cannot hold them.

    ``step_rows``: the most of one step; None: as many as its tokens. ``probes_apart``: a probe is a step of its own.
    Otherwise it is computed in that of its rows.
    """
    step_rows = step_tokens if step_rows is None else max(1, step_rows)
    moved = sum(span.length for span in claim.spans)
    corrected = 0 if claim.correction is None else moved
    if claim.probing is None:
        return _claim_steps(claim, prompt_tokens, step_tokens, step_rows, moved, corrected)
    probe = _rows_over_steps(claim.probing.rows, step_tokens, step_rows, moved, 0)
    behind = _steps_if_chosen(claim, prompt_tokens, step_tokens, step_rows, corrected)
    return probe + behind if probes_apart else [sum([*probe[1:], behind[0]], probe[0]), *behind[1:]]


def _claim_steps(
    claim: Claim, prompt_tokens: int, step_tokens: int, step_rows: int, moved: int, corrected: int
) -> list[StepShape]:
    if claim.row_tokens < step_tokens and len(claim.rows) <= step_rows:
        rows = StepShape.of(_row_parts(claim.rows), moved=moved, corrected=corrected)
        return _rows_and_rest(rows, claim.end, prompt_tokens, step_tokens)
    shapes = _rows_over_steps(claim.rows, step_tokens, step_rows, moved, corrected)
    return shapes + cold_steps(claim.end, prompt_tokens, step_tokens)


def _steps_if_chosen(
    claim: Claim, prompt_tokens: int, step_tokens: int, step_rows: int, corrected: int
) -> list[StepShape]:
    """With as many tokens as the claim's own rows, in about as many rows as a probe will choose: who knows which."""
    starts, lengths = _as_if_chosen(claim, step_rows)
    if claim.row_tokens < step_tokens and starts.size <= step_rows:
        rows = StepShape.of_rows(starts, lengths, corrected=corrected)
        return _rows_and_rest(rows, claim.end, prompt_tokens, step_tokens)
    in_step = np.maximum((np.cumsum(lengths) - lengths) // step_tokens, np.arange(starts.size) // step_rows)
    cuts = np.flatnonzero(np.diff(in_step)) + 1
    shapes = [
        StepShape.of_rows(*rows, corrected=0 if number else corrected)
        for number, rows in enumerate(zip(np.split(starts, cuts), np.split(lengths, cuts), strict=True))
    ]
    return shapes + cold_steps(claim.end, prompt_tokens, step_tokens)


def _as_if_chosen(claim: Claim, step_rows: int) -> tuple[Integers, Integers]:
    """Starts and lengths. Where a step has room for few rows, a probe chooses longer ones."""
    assert claim.probing is not None
    most = min(step_rows, claim.row_tokens // max(MOST_LIKELY_RUN, claim.probing.block))
    most = max(len(claim.rows), most - len(claim.rows))  # Each of them may end in a shorter piece.
    longest = -(-claim.row_tokens // max(1, most))
    begins, ends = np.array(claim.rows, np.int64).reshape(-1, 2).T
    pieces = -(-(ends - begins) // longest)
    number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    starts = np.repeat(begins, pieces) + number * longest
    return starts, np.minimum(np.repeat(ends, pieces) - starts, longest)


def _rows_over_steps(rows: Rows, step_tokens: int, step_rows: int, moved: int, corrected: int) -> list[StepShape]:
    shapes: list[StepShape] = []
    while rows:
        taken, rows = take_rows(rows, step_tokens, step_rows)
        first = not shapes
        shapes.append(StepShape.of(_row_parts(taken), moved=moved * first, corrected=corrected * first))
    return shapes


def planned_steps(
    plan: Plan, spans: tuple[Span, ...], step_tokens: int, budget: float, most_seam: int | None
) -> list[StepShape]:
    """About the same for some spans of a plan, before their tier has chosen its rows: to tell what is worth a claim.

    Of each span its first tokens are computed: a share of ``budget``, and at most ``most_seam``.
    """
    rows = []
    position = plan.exact_prefix_tokens
    for span in spans:
        seam = int(budget * span.length)
        seam = seam if most_seam is None else min(seam, most_seam)
        rows.append(Part(position, span.target_start - position + seam, is_row=True))
        position = span.target_end
    end = min(position, plan.prompt_tokens - 1)
    moved = sum(span.length for span in spans)
    return _rows_and_rest(StepShape.of(rows, moved=moved), end, plan.prompt_tokens, step_tokens)


def _rows_and_rest(rows: StepShape, end: int, prompt_tokens: int, step_tokens: int) -> list[StepShape]:
    beside = Part(end, min(max(1, step_tokens - rows.tokens), prompt_tokens - end))
    return [rows + StepShape.of([beside]), *cold_steps(end + beside.tokens, prompt_tokens, step_tokens)]


def _row_parts(rows: Rows) -> list[Part]:
    return [Part(start, end - start, is_row=True) for start, end in rows]


def _pieces(start: int, end: int, step_tokens: int) -> Iterator[Part]:
    for position in range(start, end, step_tokens):
        yield Part(position, min(step_tokens, end - position))
