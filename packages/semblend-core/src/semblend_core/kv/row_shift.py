"""Mean shift with a mean of its own for each token: rows weigh by how near and how alike they are.

It is attention in small: tokens that are not computed ask, and the computed rows of their span answer by their change.
How alike two tokens are is read once, from what was relocated into the middle layer. That tells as much as each layer's
own KV does, and the weights are known before the forward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from semblend_core.contract import Span
from semblend_core.kv.moves import Indices, resident_angles, upload
from semblend_core.kv.pieces import Piece, end_to_end, parts_of, places_of
from semblend_core.kv.rotation import Rotation, turn_pairs
from semblend_core.recompute import MeanShift

LARGEST_CHANGE = 3.0
"""By what is usual in its span. A row that became an attention sink, or ceased to be one, changes by far more than
others and says nothing of them: it is left out. Spread over tokens like it, it would make sinks of them all."""
MOST_WEIGHTS = 1 << 24
"""Of one request. Where very long spans have more, every so manieth of their rows is asked."""
LEAST_WEIGHT = 1e-6
"""Of rows that count: a token whose rows are all left out stays as it is."""

Kv = tuple[Tensor, Tensor]
"""K and V of one layer, [tokens, kv_heads, dim] by position."""
CosSin = tuple[Tensor, Tensor]
"""cos and sin, [tokens, 1, dim / 2]."""


def middle_layer(layers: int) -> int:
    """The layer that tells how alike tokens are."""
    return layers // 2


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What one layer shows of the tokens to correct. K is in the frame of position 0, and V stands behind it."""

    nearby: Tensor
    """[tokens, kv_heads, key_dim + value_dim] Mean change of the rows, weighed for each token"""
    whole: Tensor
    """The same shape: mean change of all rows of the span"""
    own: Tensor
    """The same shape: the relocated KV itself"""
    usual: Tensor
    """[tokens] How long the rows' changes usually are, in the token's span"""


class Learned(Protocol):
    """What a fit made of many requests."""

    @property
    def shift(self) -> MeanShift:
        """How rows are weighed for it."""

    def predict(self, layer: int, seen: Seen, places: Tensor) -> Tensor:
        """The tokens' change, in the shape of ``seen.nearby``."""


class RowShift:
    """All spans of one request. Tables are made once, ``apply`` is called in each layer."""

    def __init__(
        self,
        shift: MeanShift,
        spans: Sequence[Span],
        row_positions: Indices,
        rotation: Rotation,
        middle: Kv,
        learned: Learned | None = None,
        origins: Sequence[int] | None = None,
    ) -> None:
        """``middle``: what was relocated into the middle layer, before any row is computed.

        ``origins``: how far before its position in the prompt each span lies in this KV; None: nowhere.
        """
        # A fit knows the means that its own weights made.
        self._shift = shift if learned is None else replace(learned.shift, min_rows=shift.min_rows)
        self._rotation, self._learned = rotation, learned
        placed = zip(spans, origins or [0] * len(spans), strict=True)
        pieces = [Piece.of(span, row_positions, origin) for span, origin in placed]
        pieces = [each for each in pieces if each.rows.size >= shift.min_rows and each.others.size]
        self._spans = len(pieces)
        if pieces:
            self._make_tables(pieces, row_positions, middle)

    def _make_tables(self, pieces: list[Piece], row_positions: Indices, middle: Kv) -> None:
        """On the device before the first layer. The host waits for nothing."""
        self.every = -(-sum(each.rows.size * each.others.size for each in pieces) // MOST_WEIGHTS)
        """Of each span's rows, every so manieth is asked."""
        self._pieces = pieces = [replace(each, rows=each.rows[:: self.every]) for each in pieces]
        self._parts = parts_of(pieces)
        tokens, span_of_token = end_to_end([each.tokens for each in pieces])
        rows, span_of_row = end_to_end([each.rows for each in pieces])
        others, span_of_other = end_to_end([each.others for each in pieces])
        lengths = np.array([each.length for each in pieces])
        # Where each span's tokens begin among those of all, and by how much that is not where they lie in this KV.
        moved = np.cumsum(lengths) - lengths - np.array([each.start for each in pieces])
        in_prompt = tokens + np.array([each.origin for each in pieces])[span_of_token]
        self._row_at, self._other_at, self._row_index, self._span_of_row, self._span_of_other, *of_tokens = upload(
            [
                *(rows, others, np.searchsorted(row_positions, rows), span_of_row, span_of_other),
                *(tokens, in_prompt, span_of_token, rows + moved[span_of_row], others + moved[span_of_other]),
            ],
            middle[0].device,
        )
        self._token_at, in_prompt_there, self._span_of_token, self._row_in, self._other_in = of_tokens
        cos, sin = resident_angles(self._rotation, middle[0].device, int(in_prompt.max()) + 1)
        self._angles = _chosen((cos[:, None], sin[:, None]), in_prompt_there)
        at = self._token_at.float()
        self._places_in_kv = at, at.index_select(0, self._row_in)
        self._likes = self._likenesses(middle) if self._shift.likeness else None

    @property
    def anything(self) -> bool:
        """Whether there is a span to correct. Ask before anything else."""
        return self._spans > 0

    @cached_property
    def places(self) -> Tensor:
        """[tokens, PLACES] What depends on a token's place alone: how near its span's start and the next row are."""
        (places,) = upload([np.concatenate([places_of(each) for each in self._pieces])], self._row_at.device)
        return places

    def weights(self, multiple: int, dtype: torch.dtype) -> list[Tensor]:
        """Of each span [all its tokens, rows and zeros up to a ``multiple``]: what a kernel takes.

        What rows themselves are given says nothing: they stay as they are.
        """
        shapes = [(each.length, -(-each.rows.size // multiple) * multiple) for each in self._pieces]
        sizes = [length * padded for length, padded in shapes]
        made = torch.zeros(sum(sizes), dtype=dtype, device=self._row_at.device)
        tables = [flat.view(shape) for flat, shape in zip(torch.split(made, sizes), shapes, strict=True)]
        first = 0
        for table, (rows, _) in zip(tables, self._parts, strict=True):
            table[:, : rows.stop - rows.start] = self._weigh(slice(first, first + len(table)), rows)
            first += len(table)
        return tables

    # One layer.

    def apply(self, layer: int, keys: Tensor, values: Tensor, old_keys: Tensor, old_values: Tensor) -> None:
        """As :meth:`MeanShiftCorrection.apply`."""
        if self.anything:
            self.move(layer, keys, values, self.look(keys, values, old_keys, old_values))

    def look(self, keys: Tensor, values: Tensor, old_keys: Tensor, old_values: Tensor) -> Seen:
        """What the layer shows, after its rows were written and before anything is corrected."""
        fresh = self._in_front(keys, values, self._row_at, self._row_angles)
        change = fresh - self._in_front(old_keys, old_values, self._row_index, self._row_angles)
        length = change.flatten(1).square().sum(1).sqrt()
        # Of roots, so that what is unusual hardly counts. The shortest is never above it: some row is always left.
        usual = self._mean_of_spans(length.sqrt()).square()
        counts = (length <= LARGEST_CHANGE * usual[self._span_of_row]).to(change.dtype)
        counted = torch.cat([change.flatten(1) * counts[:, None], counts[:, None]], 1)
        answers = zip(self._weights, self._parts, strict=True)
        nearby = torch.cat([weights @ counted[rows] for weights, (rows, _) in answers])
        whole = self._mean_of_spans(counted)[self._span_of_other]
        return Seen(
            nearby=_mean_of_counted(nearby).view(-1, *change.shape[1:]),
            whole=_mean_of_counted(whole).view(-1, *change.shape[1:]),
            own=self.in_front(keys, values),
            usual=usual[self._span_of_other],
        )

    def in_front(self, keys: Tensor, values: Tensor) -> Tensor:
        """The tokens' own KV as :class:`Seen` has it."""
        return self._in_front(keys, values, self._other_at, self._other_angles)

    def move(self, layer: int, keys: Tensor, values: Tensor, seen: Seen) -> None:
        """Correct the tokens by what the layer has shown."""
        change, width = self._predicted(layer, seen), keys.shape[-1]
        moved = self._turned(change[..., :width], *self._other_angles)
        keys.index_add_(0, self._other_at, moved.to(keys.dtype))
        values.index_add_(0, self._other_at, change[..., width:].to(values.dtype))

    def _predicted(self, layer: int, seen: Seen) -> Tensor:
        if self._learned is not None:
            return self._learned.predict(layer, seen, self.places)
        strength = torch.full_like(seen.nearby[0], self._shift.of_values)
        strength[..., : self._rotation.key_dim] = self._shift.strength
        return seen.nearby * strength

    # Weights.

    def _likenesses(self, middle: Kv) -> tuple[Tensor, Tensor]:
        """Of all tokens and of rows, vectors whose products say how alike their relocated K and V are."""
        tokens = self._in_front(*middle, self._token_at, self._angles)
        # What all tokens of a span have in common tells none of them apart.
        common = self._mean_of_spans(tokens.index_select(0, self._row_in))
        directions = _directions(tokens - common.index_select(0, self._span_of_token), middle[0].shape[-1])
        return directions, directions.index_select(0, self._row_in)

    @cached_property
    def _weights(self) -> list[Tensor]:
        """Of each span [tokens, rows], adding up to 1 over the rows."""
        return [self._weigh(self._other_in[others], rows) for rows, others in self._parts]

    def _weigh(self, tokens: Tensor | slice, rows: slice) -> Tensor:
        """How these of all tokens weigh the rows of their span, [tokens, rows]."""
        (at, row_at), shift = self._places_in_kv, self._shift
        weighed, fading = (at[tokens, None] - row_at[rows]).abs_(), 0.0 if shift.reach is None else -1 / shift.reach
        if self._likes is None:
            weighed.mul_(fading)
        else:
            likes, row_likes = self._likes
            weighed.addmm_(likes[tokens], row_likes[rows].T, beta=fading, alpha=shift.likeness)
        return weighed.softmax(-1)

    @cached_property
    def _row_angles(self) -> CosSin:
        return _chosen(self._angles, self._row_in)

    @cached_property
    def _other_angles(self) -> CosSin:
        return _chosen(self._angles, self._other_in)

    # Steps.

    def _mean_of_spans(self, of_rows: Tensor) -> Tensor:
        """[spans, ...] of [rows, ...]. One by one: sums have the same bits each time."""
        return torch.stack([of_rows[rows].mean(0) for rows, _ in self._parts])

    def _in_front(self, keys: Tensor, values: Tensor, at: Tensor, angles: CosSin) -> Tensor:
        """K turned from each token's position to position 0, where all can be compared, and V behind it."""
        cos, sin = angles
        turned = self._turned(keys.index_select(0, at).float(), cos, -sin)
        return torch.cat([turned, values.index_select(0, at).float()], -1)

    def _turned(self, keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        start, end = self._rotation.start, self._rotation.start + self._rotation.size
        turned = keys.clone()
        turned[..., start:end] = turn_pairs(keys[..., start:end], cos, sin, interleaved=self._rotation.interleaved)
        return turned


def _mean_of_counted(sums: Tensor) -> Tensor:
    """[tokens, numbers] of weighted sums, behind which stands the weight that they add up."""
    return sums[:, :-1] / sums[:, -1:].clamp(min=LEAST_WEIGHT)


def _directions(kv: Tensor, key_dim: int) -> Tensor:
    """[tokens, kv_heads * dim]: of K and of V alike, whichever is longer."""
    parts = [part.flatten(1) for part in (kv[..., :key_dim], kv[..., key_dim:]) if part.shape[-1]]
    directions: Tensor = torch.cat([normalize(part, dim=1) for part in parts], 1)
    return directions / math.sqrt(len(parts))


def _chosen(angles: CosSin, at: Tensor) -> CosSin:
    cos, sin = angles
    return cos.index_select(0, at), sin.index_select(0, at)
