"""Which spans of a plan mean shift corrects, and by which of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from semblend_core.contract import Span
from semblend_core.kv.moves import Indices
from semblend_core.recompute import MeanShift


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredSpans:
    """Spans with enough computed rows to measure their change, and others to correct by it."""

    spans: list[Span]
    rows: Indices
    """Positions of the rows, span by span."""
    counts: Indices
    """[spans] How many rows each has."""
    strength: float

    @classmethod
    def choose(cls, shift: MeanShift, spans: Sequence[Span], row_positions: Indices) -> MeasuredSpans:
        rows = np.sort(np.asarray(row_positions, np.int64))
        chosen: list[Span] = []
        parts: list[Indices] = []
        for span in spans:
            inside = rows[slice(*np.searchsorted(rows, (span.target_start, span.target_end)))]
            if inside.size >= shift.min_rows and np.count_nonzero(np.diff(inside)) + 1 < span.length:
                chosen.append(span)
                parts.append(inside)
        counts = np.array([part.size for part in parts], np.int64)
        return cls(chosen, np.concatenate(parts) if parts else rows[:0], counts, shift.strength)

    @property
    def offsets(self) -> Indices:
        """Each row's distance from its span's first token."""
        starts = np.array([span.target_start for span in self.spans], np.int64)
        return self.rows - np.repeat(starts, self.counts)
