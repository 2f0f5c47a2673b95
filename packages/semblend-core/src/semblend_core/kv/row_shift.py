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

from semblend_core.contract import Span
from semblend_core.kv.moves import Indices, begins_of, resident_angles, upload
from semblend_core.kv.pieces import Piece, asked_rows, parts_of, places_of
from semblend_core.kv.rotation import Rotation, turn_pairs
from semblend_core.recompute import MeanShift

LARGEST_CHANGE = 3.0
"""By what is usual in its span. A row that became an attention sink, or ceased to be one, changes by far more than
others and says nothing of them: it is left out. Spread over tokens like it, it would make sinks of them all."""
MOST_WEIGHTS = 1 << 24
"""Of one request. Where long spans have more, only some of their rows are asked."""
AT_ONCE = 8192
"""Tokens that are made ready at a time."""
SHORTEST = 1e-12
"""Vector that has a direction."""
LEAST_WEIGHT = 1e-6
"""Of rows that count: a token whose rows are all left out stays as it is."""

Kv = tuple[Tensor, Tensor]
"""K and V of one layer, [tokens, kv_heads, dim] by position."""


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


@dataclass(frozen=True, slots=True, eq=False)
class _Tokens:
    """All tokens of the spans, or some of them."""

    at: Tensor
    """Where they lie in this KV."""
    spans: Tensor
    """The number of each one's span."""
    cos: Tensor
    """[tokens, 1, dim / 2] Of their positions in the prompt."""
    sin: Tensor

    def chosen(self, which: Tensor) -> _Tokens:
        return _Tokens(*(each.index_select(0, which) for each in (self.at, self.spans, self.cos, self.sin)))

    def part(self, which: slice) -> _Tokens:
        return _Tokens(*(each[which] for each in (self.at, self.spans, self.cos, self.sin)))


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
        self.asked = asked_rows(pieces, MOST_WEIGHTS)
        """Which of each span's rows answer."""
        answering = zip(pieces, self.asked, strict=True)
        self._pieces = pieces = [replace(each, rows=each.rows[which]) for each, which in answering]
        self._parts = parts_of(pieces)
        lengths = np.array([each.length for each in pieces])
        placed = list(zip(pieces, begins_of(lengths), strict=True))
        tokens = np.concatenate([each.tokens for each in pieces])
        row_in = np.concatenate([each.rows - each.start + first for each, first in placed])
        other_in = np.concatenate([each.others - each.start + first for each, first in placed])
        in_prompt = tokens + np.repeat([each.origin for each in pieces], lengths)
        row_index = np.searchsorted(row_positions, tokens[row_in])
        at, spans, there, self._row_in, self._other_in, self._row_index = upload(
            [tokens, np.repeat(np.arange(self._spans), lengths), in_prompt, row_in, other_in, row_index],
            middle[0].device,
        )
        cos, sin = resident_angles(self._rotation, middle[0].device, int(in_prompt.max()) + 1)
        self._tokens = _Tokens(at, spans, cos.index_select(0, there)[:, None], sin.index_select(0, there)[:, None])
        places = at.float()
        self._places_in_kv = places, places.index_select(0, self._row_in)
        self._likes = self._likenesses(middle) if self._shift.likeness else None

    @property
    def anything(self) -> bool:
        """Whether there is a span to correct. Ask before anything else."""
        return self._spans > 0

    @cached_property
    def places(self) -> Tensor:
        """[tokens, PLACES] What depends on a token's place alone: how near its span's start and the next row are."""
        (places,) = upload([np.concatenate([places_of(each) for each in self._pieces])], self._tokens.at.device)
        return places

    # One layer.

    def apply(self, layer: int, keys: Tensor, values: Tensor, old_keys: Tensor, old_values: Tensor) -> None:
        """As :meth:`MeanShiftCorrection.apply`."""
        if self.anything:
            self.move(layer, keys, values, self.look(keys, values, old_keys, old_values))

    def look(self, keys: Tensor, values: Tensor, old_keys: Tensor, old_values: Tensor) -> Seen:
        """What the layer shows, after its rows were written and before anything is corrected."""
        fresh = self._in_front(keys, values, self._rows.at, self._rows)
        change = fresh - self._in_front(old_keys, old_values, self._row_index, self._rows)
        length = change.flatten(1).square().sum(1).sqrt()
        finite = length.isfinite()
        # Of roots, so that what is unusual hardly counts. The shortest is never above it: some row is always left.
        usual = self._mean_of_spans(torch.where(finite, length, 0.0).sqrt()).square()
        counts = (finite & (length <= LARGEST_CHANGE * usual[self._rows.spans]))[:, None]
        # What is not a number counts for nothing, but times nothing it would still be none.
        counted = torch.cat([torch.where(counts, change.flatten(1), 0.0), counts.to(change.dtype)], 1)
        answers = zip(self._weights, self._parts, strict=True)
        nearby = torch.cat([weights @ counted[rows] for weights, (rows, _) in answers])
        whole = self._mean_of_spans(counted)[self._others.spans]
        return Seen(
            nearby=_mean_of_counted(nearby).view(-1, *change.shape[1:]),
            whole=_mean_of_counted(whole).view(-1, *change.shape[1:]),
            own=self.in_front(keys, values),
            usual=usual[self._others.spans],
        )

    def in_front(self, keys: Tensor, values: Tensor) -> Tensor:
        """The tokens' own KV as :class:`Seen` has it."""
        return self._in_front(keys, values, self._others.at, self._others)

    def move(self, layer: int, keys: Tensor, values: Tensor, seen: Seen) -> None:
        """Correct the tokens by what the layer has shown."""
        change, width = self._predicted(layer, seen), keys.shape[-1]
        moved = self._turned(change[..., :width], self._others.cos, self._others.sin)
        keys.index_add_(0, self._others.at, moved.to(keys.dtype))
        values.index_add_(0, self._others.at, change[..., width:].to(values.dtype))

    def _predicted(self, layer: int, seen: Seen) -> Tensor:
        if self._learned is not None:
            return self._learned.predict(layer, seen, self.places)
        strength = torch.full_like(seen.nearby[0], self._shift.of_values)
        strength[..., : self._rotation.key_dim] = self._shift.strength
        return seen.nearby * strength

    # Weights.

    def _likenesses(self, middle: Kv) -> tuple[Tensor, Tensor]:
        """Of all tokens and of rows, vectors whose products say how alike their relocated K and V are."""
        keys, values = middle
        count, width = len(self._tokens.at), keys.shape[-1] + values.shape[-1]
        tokens = torch.empty(count, keys.shape[1], width, device=keys.device)
        # In pieces and in place: of a long prompt even this one layer is large, in float32.
        pieces = [slice(first, first + AT_ONCE) for first in range(0, count, AT_ONCE)]
        for piece in pieces:
            part = self._tokens.part(piece)
            tokens[piece] = self._in_front(keys, values, part.at, part)
        # What all tokens of a span have in common tells none of them apart.
        common = self._mean_of_spans(tokens.index_select(0, self._row_in))
        for piece in pieces:
            tokens[piece] -= common.index_select(0, self._tokens.spans[piece])
        directions = _made_directions(tokens, keys.shape[-1]).flatten(1)
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
    def _rows(self) -> _Tokens:
        return self._tokens.chosen(self._row_in)

    @cached_property
    def _others(self) -> _Tokens:
        return self._tokens.chosen(self._other_in)

    # Steps.

    def _mean_of_spans(self, of_rows: Tensor) -> Tensor:
        """[spans, ...] of [rows, ...]. One by one: sums have the same bits each time."""
        return torch.stack([of_rows[rows].mean(0) for rows, _ in self._parts])

    def _in_front(self, keys: Tensor, values: Tensor, at: Tensor, tokens: _Tokens) -> Tensor:
        """K turned from each token's position to position 0, where all can be compared, and V behind it.

        ``at``: where they lie in ``keys`` and ``values``.
        """
        turned = self._turned(keys.index_select(0, at).float(), tokens.cos, -tokens.sin)
        return torch.cat([turned, values.index_select(0, at).float()], -1)

    def _turned(self, keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        start, end = self._rotation.start, self._rotation.start + self._rotation.size
        turned = keys.clone()
        turned[..., start:end] = turn_pairs(keys[..., start:end], cos, sin, interleaved=self._rotation.interleaved)
        return turned


def _mean_of_counted(sums: Tensor) -> Tensor:
    """[tokens, numbers] of weighted sums, behind which stands the weight that they add up."""
    return sums[:, :-1] / sums[:, -1:].clamp(min=LEAST_WEIGHT)


def _made_directions(kv: Tensor, key_dim: int) -> Tensor:
    """[tokens, kv_heads, dim], in place: of length 1. K and V say as much, whichever is longer."""
    parts = [part for part in (kv[..., :key_dim], kv[..., key_dim:]) if part.shape[-1]]
    for part in parts:
        length = torch.linalg.vector_norm(part, dim=(1, 2), keepdim=True)
        part /= length.clamp_(min=SHORTEST).mul_(math.sqrt(len(parts)))
    return kv
