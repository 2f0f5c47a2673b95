"""Where a question looks: the attention that its tokens pay to each token of a prompt, as an engine computes it."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_WEIGHTS = 1 << 24
"""That are held at once: 64 MiB, which every engine has to spare."""


class QuestionAttention:
    """Adds up over layers how much any token of the question attends to each token, in any head.

    ``positions`` [rows]: of the question's tokens. Nothing waits for the device.
    """

    def __init__(self, positions: Tensor) -> None:
        self._positions = positions
        self.by_layer: list[Tensor] = []
        """Of each that was added: [tokens], float32"""

    def add(self, queries: Tensor, keys: Tensor, scale: float) -> None:
        """``queries`` [rows, q_heads, dim] of the question, over ``keys`` [tokens, kv_heads, dim] from 0 on."""
        self.by_layer.append(self._most(queries, keys, scale))

    @property
    def layers(self) -> int:
        """That were added."""
        return len(self.by_layer)

    @property
    def totals(self) -> Tensor | None:
        """[tokens], float32: of all layers; None where there is none."""
        return torch.stack(self.by_layer).sum(0) if self.by_layer else None

    def _most(self, queries: Tensor, keys: Tensor, scale: float) -> Tensor:
        tokens, kv_heads, dim = keys.shape
        heads = keys.permute(1, 2, 0).float()  # Products of half the precision would choose other tokens.
        columns = torch.arange(tokens, device=keys.device)
        most = torch.zeros(tokens, device=keys.device)
        at_once = max(1, MOST_WEIGHTS // (queries.shape[1] * tokens))
        for first in range(0, len(queries), at_once):
            rows, positions = (each[first : first + at_once] for each in (queries, self._positions))
            # The query heads of one KV head stand below each other, so that no key is copied.
            grouped = rows.view(len(rows), kv_heads, -1, dim).permute(1, 0, 2, 3).reshape(kv_heads, -1, dim)
            products = (grouped.float() @ heads).mul_(scale).view(kv_heads, len(rows), -1, tokens)
            products.masked_fill_(columns > positions[:, None, None], -torch.inf)
            most = torch.maximum(most, products.softmax(-1).amax((0, 1, 2)))
        return most
