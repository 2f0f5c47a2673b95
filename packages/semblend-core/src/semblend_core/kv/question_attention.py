"""Where a question looks: the attention that its tokens pay to each token of a prompt, as an engine computes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from semblend_core.kv.donor_kv import indexable
from semblend_core.recompute import Scores

MOST_NUMBERS = 1 << 25
"""That are held at once: 128 MiB of float32, or what keys of one layer take where a prompt is too long for that."""
LEAST_WEIGHTS = 1 << 23
"""Of them, for what rows pay to tokens, however many the keys are."""
MOST_KEPT = 1 << 22
"""Bytes of queries. There may be a probe for each sequence of a step, and the engine's own layers need memory too."""

KeysAt = Callable[[Sequence[int]], Iterable[Tensor]]
"""K [tokens, kv_heads, dim] of each of these layers, from the first token of the prompt on."""


class _Asked(NamedTuple):
    """By the question in one layer."""

    layer: int
    queries: Tensor
    scale: float

    @property
    def kind(self) -> tuple[torch.Size, float]:
        """Layers of one kind are computed together."""
        return self.queries.shape, self.scale


class QuestionAttention:
    """The most that each head pays to a token from any token of the question, added up over heads and layers.

    Ranks that have some of the heads each tell sums of their own, and those add up. Each operation costs the engine's
    thread more than the GPU. So layers leave their queries, and some of them are computed at once.
    """

    def __init__(self, positions: Tensor, layers: range, keys_at: KeysAt, first: int = 0) -> None:
        """``positions`` [rows]: of the question's tokens. ``layers``: that are to be seen, each once.

        ``keys_at`` is called for layers that were added. ``first``: none of the positions is before it, so all see
        what is.
        """
        self._positions, self.layers, self._keys_at, self._first = positions, layers, keys_at, first
        self._asked: list[_Asked] = []
        self._seen: list[int] = []
        self._total: Tensor | None = None
        self._hidden: Tensor | None = None
        """[rows, 1, tokens from ``first`` on]: what a row does not see. The same in every layer."""

    def add(self, layer: int, queries: Tensor, scale: float) -> None:
        """``queries`` [rows, q_heads, dim] of the question, which nobody may write to. The layer's keys are there."""
        self._asked.append(_Asked(layer, queries, scale))
        if sum(asked.queries.nbytes for asked in self._asked) >= MOST_KEPT:
            self._add_up()

    def scores(self) -> Scores | None:
        """[tokens], float32: so ranks choose together what one would choose. None: there is nothing to choose by, since
        a layer was not seen or what it showed are no numbers. Waits for the device."""
        self._add_up()
        if self._total is None or sorted(self._seen) != list(self.layers):
            return None
        found: Scores = self._total.cpu().numpy()
        return found if np.isfinite(found).all() else None

    def _add_up(self) -> None:
        """Where this fails, its layers were not seen."""
        asked, self._asked = self._asked, []
        keys = iter(self._keys_at([each.layer for each in asked]))
        for _, alike in groupby(asked, key=lambda each: each.kind):
            for peaks in self._peaks(list(alike), keys):
                self._total = peaks if self._total is None else self._total + peaks
        self._seen += [each.layer for each in asked]

    def _peaks(self, asked: Sequence[_Asked], keys: Iterator[Tensor]) -> Iterator[Tensor]:
        """[tokens]: of some layers of one kind after others. ``keys``: those of these layers come next."""
        queries: Tensor | None = None
        at = 0
        while at < len(asked):
            by_head, count = self._keys_by_head(keys, asked[at:])
            if queries is None:
                queries = _queries_by_head(asked, len(by_head) // count)
            peaks = self._peaks_at_once(queries[at : at + count].flatten(0, 1), by_head)
            del by_head  # Before the next are made.
            yield peaks
            at += count

    def _keys_by_head(self, keys: Iterator[Tensor], asked: Sequence[_Asked]) -> tuple[Tensor, int]:
        """[layers * kv_heads, dim, tokens] of the next layers, and how many these are.

        In float32: products of half the precision would choose other tokens.
        """
        first = next(keys)
        tokens, kv_heads, dim = first.shape
        rows, q_heads, _ = asked[0].queries.shape
        # Weights are made of products.
        count = min(len(asked), max(1, MOST_NUMBERS // (first.numel() + 2 * rows * q_heads * tokens)))
        if count == 1:
            return first.permute(1, 2, 0).float(), 1
        made = first.new_empty((count, kv_heads, tokens, dim), dtype=torch.float32)
        made[0] = first.transpose(0, 1)
        del first
        for number in range(1, count):
            made[number] = next(keys).transpose(0, 1)
        return made.flatten(0, 1).transpose(1, 2), count

    def _peaks_at_once(self, queries: Tensor, keys: Tensor) -> Tensor:
        """``queries`` [heads, rows, shared, dim] by KV head. ``keys`` [heads, dim, tokens]."""
        heads, rows, shared, dim = queries.shape
        tokens = keys.shape[2]
        if self._hidden is None:
            self._hidden = torch.arange(self._first, tokens, device=keys.device) > self._positions[:, None, None]
        at_once = max(1, max(LEAST_WEIGHTS, MOST_NUMBERS - keys.numel()) // (2 * heads * shared * tokens))
        most: Tensor | None = None
        for first in range(0, rows, at_once):
            part = slice(first, first + at_once)
            # The query heads of one KV head stand below each other, so that no key is copied.
            products = torch.bmm(queries[:, part].reshape(heads, -1, dim), keys).view(heads, -1, shared, tokens)
            products[..., self._first :].masked_fill_(self._hidden[part], -torch.inf)
            peaks = products.softmax(-1).amax(1)
            most = peaks if most is None else torch.maximum(most, peaks)
        assert most is not None
        return most.sum((0, 1))


def _queries_by_head(asked: Sequence[_Asked], kv_heads: int) -> Tensor:
    """[layers, kv_heads, rows, query heads of a KV head, dim], scaled: they are far fewer than products."""
    rows, _, dim = asked[0].queries.shape
    stored = torch.stack([indexable(each.queries) for each in asked]).view(asked[0].queries.dtype)
    wide = stored.float() * asked[0].scale
    return wide.view(len(asked), rows, kv_heads, -1, dim).transpose(1, 2).contiguous()
