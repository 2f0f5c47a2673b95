"""What a plan reuses, as arrays over the prompt's positions: what policies choose from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from semblend_core.contract import Plan, Row, RowKind, Span

Mask: TypeAlias = npt.NDArray[np.bool_]

SMALL_EDIT_TOKENS = 64
"""Spans of one donor whose shifts differ by no more than this are one text with edits."""
MOST_FEW = 4
"""Places that a plan may be of and count as one of few. Of more, it strays further."""


class Reuse:
    """A plan that computes only gaps, seen from the side of what it reuses. Positions are the prompt's."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.gaps: Mask = np.zeros(plan.prompt_tokens, np.bool_)
        for row in plan.rows:
            self.gaps[row.start : row.start + row.length] = True
        self.reused: Mask = np.zeros(plan.prompt_tokens, np.bool_)
        """Positions whose relocated KV would be used: what a policy may choose to compute instead."""
        for span in plan.spans:
            self.reused[span.target_start : span.target_start + span.length] = True
        self.reused &= ~self.gaps
        self.tokens = tokens_in(self.reused)

    def places_in_spans(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Tokens since their spans' starts, of positions in spans."""
        starts = np.array([span.target_start for span in self.plan.spans])
        places: npt.NDArray[np.int64] = positions - starts[np.searchsorted(starts, positions, side="right") - 1]
        return places

    @property
    def question_start(self) -> int:
        """Where the last run of computed tokens begins: the question, in a prompt that ends with one."""
        return self.plan.rows[-1].start

    def heads(self, tokens: int, tokens_after_edit: int | None = None) -> Mask:
        """The first ``tokens`` of every span; of one that goes on behind a small edit, ``tokens_after_edit``."""
        mask = np.zeros(self.plan.prompt_tokens, np.bool_)
        before: Span | None = None
        for span in self.plan.spans:
            edited = tokens_after_edit is not None and before is not None and continues(before, span)
            length = tokens_after_edit if edited and tokens_after_edit is not None else tokens
            mask[span.target_start : min(span.target_start + length, span.target_end)] = True
            before = span
        return mask & self.reused

    def tail(self, tokens: int) -> Mask:
        """The prompt's last ``tokens``, as far as they are reused."""
        mask = np.zeros(self.plan.prompt_tokens, np.bool_)
        mask[max(0, self.plan.prompt_tokens - tokens) :] = True
        return mask & self.reused

    def with_recomputed(self, chosen: Mask, seams: Mask) -> Plan:
        """The plan that also computes ``chosen``; those that are ``seams`` too are called so."""
        rows = list(self.plan.rows)
        rows += _rows_of(chosen & seams & self.reused, RowKind.SEAM)
        rows += _rows_of(chosen & ~seams & self.reused, RowKind.CHOSEN)
        rows.sort(key=lambda row: row.start)
        plan = self.plan
        return Plan(plan.request_id, plan.prompt_tokens, plan.exact_prefix_tokens, plan.spans, tuple(rows))


def tokens_in(mask: Mask) -> int:
    return int(np.count_nonzero(mask))


def from_one_place(spans: Sequence[Span]) -> bool:
    """Whether all spans follow each other in one donor as they do here: one document, perhaps with small edits."""
    return places_of(spans) <= 1


def places_of(spans: Sequence[Span]) -> int:
    """How many documents or passages they are of, each perhaps with small edits."""
    return bool(spans) + sum(not continues(before, after) for before, after in pairwise(spans))


def continues(before: Span, after: Span) -> bool:
    """Whether ``after`` goes on in the text of ``before``, with edits between them that moved it by little."""
    if before.donor_id != after.donor_id or after.donor_start < before.donor_end:
        return False
    return abs(after.shift - before.shift) <= SMALL_EDIT_TOKENS


def _rows_of(mask: Mask, kind: RowKind) -> list[Row]:
    inner = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    edges = [*([0] if mask[0] else []), *inner.tolist(), *([mask.size] if mask[-1] else [])]
    return [Row(start, end - start, kind) for start, end in zip(edges[::2], edges[1::2], strict=True)]
