"""Where a question looks: the attention that its tokens pay to each token of a prompt, as an engine computes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from semblend_core.kv.donor_kv import indexable
from semblend_core.recompute import Scores

MOST_NUMBERS = 1 << 26
"""That are held at once: 256 MiB of float32, or what one row takes in one layer of a prompt that is too long."""

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
    thread more than the GPU. So layers only leave their queries, and ``scores`` computes many layers at once.
    """

    def __init__(self, positions: Tensor, layers: range, keys_at: KeysAt, first: int = 0) -> None:
        """``positions`` [rows]: of the question's tokens. ``layers``: that are to be seen, each once.

        ``keys_at`` is called by ``scores``. ``first``: none of the positions is before it, so all see what is.
        """
        self._positions, self.layers, self._keys_at, self._first = positions, layers, keys_at, first
        self._asked: list[_Asked] = []

    def add(self, layer: int, queries: Tensor, scale: float) -> None:
        """``queries`` [rows, q_heads, dim] of the question, which nobody may write to."""
        self._asked.append(_Asked(layer, queries, scale))

    def scores(self) -> Scores | None:
        """[tokens], float32: so ranks choose together what one would choose. None: there is nothing to choose by, since
        a layer was not seen or what it showed are no numbers. Waits for the device."""
        seen = [asked.layer for asked in self._asked]
        if not seen or sorted(seen) != list(self.layers):
            return None
        keys = iter(self._keys_at(seen))
        kinds = (list(alike) for _, alike in groupby(self._asked, key=lambda asked: asked.kind))
        total = sum(peaks for alike in kinds for peaks in self._peaks(alike, keys))
        assert isinstance(total, Tensor)
        found: Scores = total.cpu().numpy()
        return found if np.isfinite(found).all() else None

    def _peaks(self, asked: Sequence[_Asked], keys: Iterator[Tensor]) -> Iterator[Tensor]:
        """[tokens]: of some layers of one kind after others. ``keys``: those of these layers come next."""
        first = next(keys)
        tokens, kv_heads, _ = first.shape
        queries = _queries_by_head(asked, kv_heads)
        hidden = torch.arange(self._first, tokens, device=first.device) > self._positions[:, None, None]
        weights = queries[0, ..., 0].numel() * tokens
        at_once = max(1, MOST_NUMBERS // (2 * (weights + first.numel())))  # Each is made of another.
        keys = chain([first], keys)
        del first
        for at in range(0, len(asked), at_once):
            some = queries[at : at + at_once]
            yield self._peaks_at_once(some.flatten(0, 1), _keys_by_head(list(islice(keys, len(some)))), hidden)

    def _peaks_at_once(self, queries: Tensor, keys: Tensor, hidden: Tensor) -> Tensor:
        """``queries`` [heads, rows, shared, dim] by KV head. ``keys`` [heads, dim, tokens]. ``hidden`` [rows, 1, tokens
        from the first that is not seen by all]: what a row does not see."""
        heads, rows, shared, dim = queries.shape
        tokens = keys.shape[2]
        at_once = max(1, MOST_NUMBERS // (2 * heads * shared * tokens))
        most: Tensor | None = None
        for first in range(0, rows, at_once):
            part = slice(first, first + at_once)
            # The query heads of one KV head stand below each other, so that no key is copied.
            products = torch.bmm(queries[:, part].reshape(heads, -1, dim), keys).view(heads, -1, shared, tokens)
            products[..., self._first :].masked_fill_(hidden[part], -torch.inf)
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


def _keys_by_head(keys: Sequence[Tensor]) -> Tensor:
    """[layers * kv_heads, dim, tokens] in float32: products of half the precision would choose other tokens."""
    stored = torch.stack(list(keys)) if len(keys) > 1 else keys[0][None]
    wide = stored.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    return wide.flatten(0, 1).transpose(1, 2)
