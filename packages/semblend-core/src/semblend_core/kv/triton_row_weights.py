"""The weights of rows for KV in an engine's pool, once for a request. What RowShift's are, in few launches.

It is done while the host has a forward to launch: so the host's time counts, not the device's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semblend_core.kv import row_shift
from semblend_core.kv.mean_shift import MeasuredSpans
from semblend_core.kv.moves import Indices, begins_of
from semblend_core.kv.pieces import Piece, asked_rows
from semblend_core.kv.places import tiles

TOKENS = 8
"""Whose weights one program makes."""
Launched = Callable[[], None]


def asked_of(measured: MeasuredSpans) -> MeasuredSpans:
    """With those of its rows that answer: fewer, where tokens and rows are too many."""
    lengths = np.array([span.length for span in measured.spans], np.int64)
    if int(lengths @ measured.counts) <= row_shift.MOST_WEIGHTS:
        return measured
    of_spans = np.split(measured.rows, np.cumsum(measured.counts)[:-1])
    pieces = [
        Piece(span.target_start, span.length, 0, rows, rows[:0])
        for span, rows in zip(measured.spans, of_spans, strict=True)
    ]
    return measured.only(asked_rows(pieces, row_shift.MOST_WEIGHTS))


@dataclass(frozen=True, slots=True, eq=False)
class RowWeights:
    """Where the weights of each span lie, and how they are made."""

    measured: MeasuredSpans
    lengths: Indices
    """[spans] In tokens."""
    padded: Indices
    """[spans] Rows and zeros behind them."""

    @classmethod
    def of(cls, measured: MeasuredSpans, lengths: Indices, multiple: int) -> RowWeights:
        return cls(measured, lengths, -(-measured.counts // multiple) * multiple)

    @property
    def is_alike(self) -> bool:
        return self.measured.shift.likeness > 0

    def host_tables(self) -> dict[str, npt.NDArray[Any]]:
        """By the names under which kernels and ``make`` take them."""
        counts = self.measured.counts
        weights, products = self.lengths * self.padded, self.lengths * counts
        token_spans, first_token_tiles = tiles(self.lengths, TOKENS)
        made: dict[str, npt.NDArray[Any]] = {
            "padded_counts": self.padded.astype(np.int32),
            "first_chosen": begins_of(self.padded).astype(np.int32),
            "weight_starts": begins_of(weights),
            "token_spans": token_spans,
            "first_token_tiles": first_token_tiles,
            "first_products": begins_of(products),
        }
        if self.is_alike:
            made["rows_in"] = np.repeat(begins_of(self.lengths), counts) + self.measured.offsets
        return made

    def arguments(self, heads: int, width: int, parts: int, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
        """What these kernels take besides what a correction's take: numbers, and memory to fill.

        ``width``: of K and V of one head, which are ``parts``. ``dtype``: of the weights.
        """
        shift, alike = self.measured.shift, self.is_alike
        tokens, spans, numbers = (int(self.lengths.sum()), len(self.lengths), heads * width) if alike else (0, 0, 0)
        products = int(self.lengths @ self.measured.counts) if alike else 0
        return {
            "fronted": torch.empty((tokens, numbers), device=device),
            "common": torch.empty((spans, numbers), device=device),
            "directions": torch.empty((tokens, numbers), device=device),
            "products": torch.empty(products, device=device),
            "weights": torch.empty(int(self.lengths @ self.padded), dtype=dtype, device=device),
            "fading": 0.0 if shift.reach is None else -1.0 / shift.reach,
            "likeness": float(shift.likeness),
            "NEAR": shift.reach is not None,
            "ALIKE": alike,
            "SHORTEST": row_shift.SHORTEST,
            "NORM": math.sqrt(parts),
            "TOKENS": TOKENS,
        }

    def make(self, given: dict[str, Any], front: Launched, common: Launched, direct: Launched, ask: Launched) -> None:
        """Fill the weights. ``given``: all arguments by name. What a kernel reads is there before it is launched."""
        if self.is_alike:
            front()
            common()
            direct()
            self._multiply(given["directions"], given["rows_in"], given["products"])
        ask()

    def _multiply(self, directions: Tensor, rows_in: Tensor, products: Tensor) -> None:
        lengths, counts = self.lengths.tolist(), self.measured.counts.tolist()
        sizes = [length * count for length, count in zip(lengths, counts, strict=True)]
        rows = torch.split(directions.index_select(0, rows_in).T, counts, 1)
        parts = zip(torch.split(directions, lengths), rows, torch.split(products, sizes), counts, strict=True)
        for tokens, of_rows, out, count in parts:
            torch.mm(tokens, of_rows, out=out.view(-1, count))
