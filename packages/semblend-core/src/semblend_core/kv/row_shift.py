"""Mean shift with a mean of its own for each token: rows weigh by how near and how alike they are.

It is attention in small: tokens that are not computed ask, the computed rows of their span answer with their change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from semblend_core.contract import Span
from semblend_core.kv.moves import Indices
from semblend_core.kv.rotation import Rotation, turn_pairs
from semblend_core.recompute import MeanShift

MOST_WEIGHTS = 1 << 22
"""Weights that are worked out at once: bounds what a layer needs for a while (four bytes each, a few times over)."""
LARGEST_CHANGE = 2.0
"""By the mean of its span. A row that became an attention sink, or ceased to be one, changes by far more than others,
and says nothing of them: what it shows is shortened to this."""
TOKENS_AT_ONCE = 512
"""Of one span: long ones are taken in pieces."""


@dataclass(frozen=True, slots=True, eq=False)
class Asking:
    """Pieces of spans with about equally many rows, side by side. Shorter ones are padded."""

    tokens: Tensor
    """[pieces, tokens] into the corrected tokens of all spans"""
    is_token: Tensor
    """[pieces, tokens] bool"""
    rows: Tensor
    """[pieces, rows] into the rows of all spans"""
    is_row: Tensor
    """[pieces, rows] bool"""


class RowShift:
    """All spans of one request. Tables are made once, ``apply`` is called in each layer."""

    def __init__(
        self, shift: MeanShift, spans: Sequence[Span], row_positions: Indices, rotation: Rotation, device: torch.device
    ) -> None:
        self._shift, self._rotation = shift, rotation
        pieces = [_Piece.of(span, row_positions) for span in spans]
        self._pieces = [each for each in pieces if each.rows.size >= shift.min_rows and each.others.size]
        rows, others = (
            np.concatenate([np.zeros(0, np.int64), *(getattr(each, name) for each in self._pieces)])
            for name in ("rows", "others")
        )
        numbers, counts = np.arange(len(self._pieces)), [each.rows.size for each in self._pieces]
        self._row_index, self._row_at = _on(device, np.searchsorted(row_positions, rows)), _on(device, rows)
        self._other_at = _on(device, others)
        self._row_counts = _on(device, np.array(counts, np.int64))
        self._span_of_row = _on(device, np.repeat(numbers, counts))
        self._span_of_other = _on(device, np.repeat(numbers, [each.others.size for each in self._pieces]))
        self._row_angles = _angles(rotation, rows, device)
        self._other_angles = _angles(rotation, others, device)
        self._asking = [_padded(group, device) for group in _groups(self._pieces)]

    def apply(self, keys: Tensor, values: Tensor, old_keys: Tensor, old_values: Tensor) -> None:
        """As :meth:`MeanShiftCorrection.apply`."""
        if not self._pieces:
            return
        old_k, old_v = (each.index_select(0, self._row_index).float() for each in (old_keys, old_values))
        fresh_k, fresh_v = (each.index_select(0, self._row_at).float() for each in (keys, values))
        changes = (self._to_front(fresh_k - old_k, self._row_angles), fresh_v - old_v)
        change = torch.cat([self._shortened(each) for each in changes], -1)
        mean = torch.zeros((self._other_at.numel(), *change.shape[1:]), device=change.device)
        likes = self._likes(old_k, old_v, keys, values) if self._shift.likeness else None
        for asking in self._asking:
            weights = self._weights(asking, likes)
            found = weights @ change[asking.rows].flatten(2)
            mean[asking.tokens[asking.is_token]] = found[asking.is_token].view(-1, *change.shape[1:])
        moved, width = mean[..., : keys.shape[-1]], keys.shape[-1]
        moved = self._to_place(moved * self._shift.strength, self._other_angles)
        keys.index_add_(0, self._other_at, moved.to(keys.dtype))
        values.index_add_(0, self._other_at, (mean[..., width:] * self._shift.of_values).to(values.dtype))

    def _weights(self, asking: Asking, likes: tuple[Tensor, Tensor] | None) -> Tensor:
        """[pieces, tokens, rows], adding up to 1 over the rows."""
        shape = (*asking.tokens.shape, asking.rows.shape[1])
        weighed = torch.zeros(shape, device=asking.tokens.device)
        if likes is not None:
            of_rows, of_others = likes
            weighed = of_others[asking.tokens] @ of_rows[asking.rows].transpose(1, 2) * self._shift.likeness
        if self._shift.reach is not None:
            apart = self._other_at[asking.tokens][:, :, None] - self._row_at[asking.rows][:, None]
            weighed = weighed - apart.abs() / self._shift.reach
        return weighed.masked_fill(~asking.is_row[:, None], -torch.inf).softmax(-1)

    def _likes(self, old_k: Tensor, old_v: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Of rows and of other tokens, vectors whose products say how alike their relocated K and V are."""
        of_rows, of_others = [], []
        other_k, other_v = (each.index_select(0, self._other_at).float() for each in (keys, values))
        parts = [(self._to_front(old_k, self._row_angles), self._to_front(other_k, self._other_angles))]
        parts += [(old_v, other_v)] if old_v.shape[-1] else []
        for rows, others in parts:
            # What all tokens of a span have in common tells none of them apart.
            middle = self._mean_of_spans(rows)
            of_rows.append(normalize((rows - middle[self._span_of_row]).flatten(1), dim=1))
            of_others.append(normalize((others - middle[self._span_of_other]).flatten(1), dim=1))
        scale = len(parts) ** -0.5
        return torch.cat(of_rows, 1) * scale, torch.cat(of_others, 1) * scale

    def _shortened(self, change: Tensor) -> Tensor:
        """Rows' change, of which none is much longer than the others of its span."""
        length = change.flatten(1).square().sum(1).sqrt()
        most = LARGEST_CHANGE * self._mean_of_spans(length)[self._span_of_row]
        return change * (most / length.clamp(min=torch.finfo(length.dtype).tiny)).clamp(max=1)[:, None, None]

    def _mean_of_spans(self, rows: Tensor) -> Tensor:
        total = torch.zeros((len(self._pieces), *rows.shape[1:]), device=rows.device)
        total.index_add_(0, self._span_of_row, rows)
        return total / self._row_counts.view(-1, *(1,) * (rows.dim() - 1))

    def _to_front(self, keys: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """From each token's own position to position 0, where keys of any positions can be compared."""
        return self._turned(keys, angles[0], -angles[1])

    def _to_place(self, keys: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        return self._turned(keys, *angles)

    def _turned(self, keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        start, end = self._rotation.start, self._rotation.start + self._rotation.size
        turned = keys.clone()
        turned[..., start:end] = turn_pairs(keys[..., start:end], cos, sin, interleaved=self._rotation.interleaved)
        return turned


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """One span: positions that are computed, and the others."""

    rows: Indices
    others: Indices

    @classmethod
    def of(cls, span: Span, row_positions: Indices) -> _Piece:
        inside = row_positions[(row_positions >= span.target_start) & (row_positions < span.target_end)]
        everything = np.arange(span.target_start, span.target_end)
        return cls(inside, np.setdiff1d(everything, inside, assume_unique=True))


_Run = tuple[int, int]
"""[first, end) of a flat list."""


def _groups(pieces: Sequence[_Piece]) -> Iterator[list[tuple[_Run, _Run]]]:
    """Runs of corrected tokens, each with its rows, those with like numbers of rows together."""
    runs: list[tuple[_Run, _Run]] = []
    first_row = first_other = 0
    for piece in pieces:
        rows = (first_row, first_row + piece.rows.size)
        for start in range(0, piece.others.size, TOKENS_AT_ONCE):
            end = min(start + TOKENS_AT_ONCE, piece.others.size)
            runs.append(((first_other + start, first_other + end), rows))
        first_row, first_other = rows[1], first_other + piece.others.size
    runs.sort(key=lambda run: run[1][1] - run[1][0])
    group: list[tuple[_Run, _Run]] = []
    for run in runs:
        rows_here = run[1][1] - run[1][0]
        fewest = group[0][1][1] - group[0][1][0] if group else rows_here
        if group and (rows_here > 2 * fewest or (len(group) + 1) * TOKENS_AT_ONCE * rows_here > MOST_WEIGHTS):
            yield group
            group = []
        group.append(run)
    if group:
        yield group


def _padded(group: Sequence[tuple[_Run, _Run]], device: torch.device) -> Asking:
    tables: list[Tensor] = []
    for which in (0, 1):
        runs = np.array([each[which] for each in group])
        places = np.arange((runs[:, 1] - runs[:, 0]).max())
        inside = places < (runs[:, 1] - runs[:, 0])[:, None]
        tables += [_on(device, np.where(inside, runs[:, :1] + places, 0)), _on(device, inside)]
    return Asking(*tables)


def _on(device: torch.device, numbers: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Tensor:
    return torch.from_numpy(numbers).to(device)


def _angles(rotation: Rotation, positions: Indices, device: torch.device) -> tuple[Tensor, Tensor]:
    cos, sin = rotation.cos_sin(positions)
    return cos[:, None].to(device), sin[:, None].to(device)
