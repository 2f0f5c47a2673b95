"""Spans of which a part is computed: which of their tokens are, and where these lie among those of all spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semblend_core.contract import Span
from semblend_core.kv.moves import Indices

FADES_AFTER = 32.0
"""Tokens over which the nearness of a span's start, or of a row, fades by a factor of e."""
LEAST_ASKED = 32
"""Rows of a span that are asked, where it has as many: of fewer nobody can tell what is usual."""
PLACES = 3
"""Numbers that tell of a token's place, the first of which is 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """One span: positions that are computed, and the others."""

    start: int
    length: int
    origin: int
    rows: Indices
    others: Indices

    @property
    def tokens(self) -> Indices:
        return np.arange(self.start, self.start + self.length)

    @classmethod
    def of(cls, span: Span, row_positions: Indices, origin: int) -> Piece:
        inside = row_positions[slice(*np.searchsorted(row_positions, (span.target_start, span.target_end)))]
        computed = np.zeros(span.length, np.bool_)
        computed[inside - span.target_start] = True
        others = span.target_start + np.flatnonzero(~computed)
        return cls(span.target_start, span.length, origin, inside, others)


def parts_of(pieces: Sequence[Piece]) -> list[tuple[slice, slice]]:
    """Where each span's rows and other tokens lie among those of all spans."""
    ends = np.cumsum([(each.rows.size, each.others.size) for each in pieces], axis=0).tolist()
    return [
        (slice(row_end - each.rows.size, row_end), slice(other_end - each.others.size, other_end))
        for each, (row_end, other_end) in zip(pieces, ends, strict=True)
    ]


def asked_rows(pieces: Sequence[Piece], most_weights: int) -> list[Indices]:
    """Which of each span's rows its tokens ask. All, unless the tokens have more weights than that, all together.

    What a span with few rows leaves of its share is for those with more.
    """
    asked = [np.arange(each.rows.size) for each in pieces]
    weights, tokens = most_weights, sum(each.length for each in pieces)
    for place in sorted(range(len(pieces)), key=lambda each: pieces[each].rows.size):
        rows, length = pieces[place].rows.size, pieces[place].length
        fair = max(LEAST_ASKED, weights // tokens)
        if rows > fair:
            asked[place] = np.linspace(0, rows - 1, fair).round().astype(np.int64)
        weights -= asked[place].size * length
        tokens -= length
    return asked


def places_of(piece: Piece) -> npt.NDArray[np.float32]:
    """[tokens, PLACES] Of those that are not computed: 1, how near the span's start is, and how near the next row."""
    after = np.searchsorted(piece.rows, piece.others)
    behind, ahead = np.maximum(after - 1, 0), np.minimum(after, piece.rows.size - 1)
    to_row = np.minimum(abs(piece.others - piece.rows[behind]), abs(piece.others - piece.rows[ahead]))
    faded = [np.exp(-apart / FADES_AFTER) for apart in (piece.others - piece.start, to_row)]
    return np.stack([np.ones(piece.others.size), *faded], 1).astype(np.float32)
