"""Correcting relocated KV by what recomputing a part of it has shown (``MeanShift``), one layer at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semblend_core.contract import Span
from semblend_core.kv.moves import Indices, begins_of
from semblend_core.kv.rotation import Rotation, turn_pairs
from semblend_core.kv.row_shift import Kv, Learned, RowShift
from semblend_core.recompute import MeanShift

Positions = npt.NDArray[np.int64]


class SpanShift:
    """Corrects one span: measured at its recomputed positions, applied to the others. Tables are built once."""

    def __init__(self, span: Span, rows: Positions, rotation: Rotation, device: torch.device) -> None:
        inside = np.flatnonzero((rows >= span.target_start) & (rows < span.target_end))
        others = np.setdiff1d(np.arange(span.target_start, span.target_end), rows[inside], assume_unique=True)
        self.samples = int(inside.size)
        self.others = int(others.size)
        self._rows = torch.from_numpy(inside).to(device)
        self._at = torch.from_numpy(rows[inside]).to(device)
        self._others = torch.from_numpy(others).to(device)
        self._rotation = rotation
        self._to_front = _tables(rotation, -rows[inside], device)
        self._to_place = _tables(rotation, others, device)

    def apply(self, keys: Tensor, values: Tensor, old_keys: Tensor, old_values: Tensor, shift: MeanShift) -> None:
        change = (keys.index_select(0, self._at) - old_keys.index_select(0, self._rows)).float()
        # Keys change alike in the frame of one position, not where rotation has turned each by its own angle.
        mean = self._turned(change, self._to_front).mean(0, keepdim=True) * shift.strength
        moved = self._turned(mean.expand(self.others, *mean.shape[1:]), self._to_place)
        keys.index_add_(0, self._others, moved.to(keys.dtype))
        change = (values.index_select(0, self._at) - old_values.index_select(0, self._rows)).float()
        mean = change.mean(0, keepdim=True) * shift.of_values
        values.index_add_(0, self._others, mean.expand(self.others, *mean.shape[1:]).to(values.dtype))

    def _turned(self, keys: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        start, end = self._rotation.start, self._rotation.start + self._rotation.size
        turned = keys.clone()
        turned[..., start:end] = turn_pairs(keys[..., start:end], *tables, interleaved=self._rotation.interleaved)
        return turned


class MeanShiftCorrection:
    """Applies ``MeanShift`` to all spans of a plan. Call ``apply`` in each layer, after the rows' KV was written."""

    def __init__(
        self,
        shift: MeanShift,
        spans: Sequence[Span],
        row_positions: Positions,
        rotation: Rotation,
        middle: Kv,
        learned: Learned | None = None,
        origins: Sequence[int] | None = None,
    ) -> None:
        """``middle``: K and V [tokens, kv_heads, dim] by position, as they were relocated into ``middle_layer``.

        ``learned``: what a fit says of this model's changes; taken where ``shift`` asks for it. ``origins``: where
        positions are not the prompt's, what is to be added to those of each span. Only a fit asks for it.
        """
        self._shift = shift
        self._by_row: RowShift | None = None
        self._by_span: list[SpanShift] = []
        if shift.weighs_rows:
            fitted = learned if shift.learned else None
            self._by_row = RowShift(shift, spans, row_positions, rotation, middle, fitted, origins)
        else:
            made = (SpanShift(span, row_positions, rotation, middle[0].device) for span in spans)
            self._by_span = [each for each in made if each.samples >= shift.min_rows and each.others]

    def apply(self, layer: int, keys: Tensor, values: Tensor, old_keys: Tensor, old_values: Tensor) -> None:
        """Correct one layer in place.

        ``keys``, ``values``: [tokens, kv_heads, dim] by position, the rows' fresh KV in them. ``old_*``: [rows,
        kv_heads, dim], what the rows held when they were relocated.
        """
        if self._by_row is not None:
            self._by_row.apply(layer, keys, values, old_keys, old_values)
        for span in self._by_span:
            span.apply(keys, values, old_keys, old_values, self._shift)


def _tables(rotation: Rotation, shifts: Positions, device: torch.device) -> tuple[Tensor, Tensor]:
    cos, sin = rotation.cos_sin(shifts)
    return cos[:, None].to(device), sin[:, None].to(device)


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredSpans:
    """Spans with enough computed rows to measure their change, and others to correct by it."""

    spans: list[Span]
    rows: Indices
    """Positions of the rows, span by span."""
    counts: Indices
    """[spans] How many rows each has."""
    shift: MeanShift
    computed: Indices
    """Positions that stay as they are: all rows, also where some of them only are measured."""

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
        inside = np.concatenate(parts) if parts else rows[:0]
        return cls(chosen, inside, counts, shift, inside)

    def only(self, asked: Sequence[Indices]) -> MeasuredSpans:
        """With these of each span's rows alone."""
        which = np.concatenate([first + each for first, each in zip(begins_of(self.counts), asked, strict=True)])
        return replace(self, rows=self.rows[which], counts=np.array([each.size for each in asked], np.int64))

    @property
    def offsets(self) -> Indices:
        """Each row's distance from its span's first token."""
        starts = np.array([span.target_start for span in self.spans], np.int64)
        return self.rows - np.repeat(starts, self.counts)
