"""Where a question looks: the attention that its tokens pay to each token of a prompt, as an engine computes it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from semblend_core.recompute import Scores

MOST_WEIGHTS = 1 << 24
"""That are held at once: 64 MiB, which every engine has to spare."""


class QuestionAttention:
    """The most that each head pays to a token from any token of the question, added up over heads and layers.

    Ranks that have some of the heads each tell sums of their own, and those add up. Nothing waits for the device before
    ``scores``.
    """

    def __init__(self, positions: Tensor, layers: range, first: int = 0) -> None:
        """``positions`` [rows]: of the question's tokens. ``layers``: that are to be seen, each once.

        ``first``: none of the positions is before it, so all see what is.
        """
        self._positions, self.layers, self._first = positions, layers, first
        self._totals: Tensor | None = None
        self._seen: list[int] = []

    def add(self, layer: int, queries: Tensor, keys: Tensor, scale: float) -> None:
        """``queries`` [rows, q_heads, dim] of the question, over ``keys`` [tokens, kv_heads, dim] from 0 on."""
        peaks = self._peaks(queries, keys, scale)
        self._totals = peaks if self._totals is None else self._totals + peaks
        self._seen.append(layer)

    def scores(self) -> Scores | None:
        """[tokens], float32: so ranks choose together what one would choose. None: there is nothing to choose by, since
        a layer was not seen or what it showed are no numbers. Waits for the device."""
        if self._totals is None or sorted(self._seen) != list(self.layers):
            return None
        found: Scores = self._totals.cpu().numpy()
        return found if np.isfinite(found).all() else None

    def _peaks(self, queries: Tensor, keys: Tensor, scale: float) -> Tensor:
        """[tokens]: of one layer."""
        (tokens, kv_heads, dim), q_heads = keys.shape, queries.shape[1]
        heads = keys.permute(1, 2, 0).float()  # Products of half the precision would choose other tokens.
        columns = torch.arange(self._first, tokens, device=keys.device)
        queries = queries.float() * scale  # There are far fewer of them than of products.
        most = torch.zeros(q_heads, tokens, device=keys.device)
        at_once = max(1, MOST_WEIGHTS // (q_heads * tokens))
        for first in range(0, len(queries), at_once):
            rows, positions = (each[first : first + at_once] for each in (queries, self._positions))
            # The query heads of one KV head stand below each other, so that no key is copied.
            grouped = rows.view(len(rows), kv_heads, -1, dim).permute(1, 0, 2, 3).reshape(kv_heads, -1, dim)
            products = (grouped @ heads).view(kv_heads, len(rows), -1, tokens)
            products[..., self._first :].masked_fill_(columns > positions[:, None, None], -torch.inf)
            most = torch.maximum(most, products.softmax(-1).amax(1).view(q_heads, tokens))
        return most.sum(0)
