"""Where the questions of a batch look: seen in the attention of a first small forward.

It computes what no span covers, the questions too, over relocated KV. What it writes, the forward behind it writes
again, so it leaves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from semblend_core.kv import QuestionAttention
from semblend_core.recompute import Scores
from semblend_core.serving import Claim, contain
from semblend_core.serving.tree import SlotPool


class Look:
    """Of one request. Nothing waits for the device before ``scores``.

    Keys are read from the pool when some layers were seen. They stay as the forward found them until the one behind it.
    """

    def __init__(self, claim: Claim, row: Tensor, pool: SlotPool, first_token: int) -> None:
        """``row``: the slots of its prompt. ``first_token``: where the forward's tokens behind the claim begin."""
        assert claim.probing is not None
        start, end = claim.probing.question
        self._pool = pool
        self._slots = row[:end].to(torch.int64)
        self._asking = slice(first_token + start - claim.end, first_token + end - claim.end)
        asking = torch.arange(start, end, device=row.device)
        self._attention = QuestionAttention(asking, claim.probing.layers, self._keys_at, start)
        self._dtype: torch.dtype | None = None
        """Of queries. What is kept as fp8 is attended to in the same."""

    def layer_has_attended(self, layer: Any, queries: Tensor) -> None:
        """``queries``: of all tokens of the forward, as SGLang's attention ``layer`` got them."""
        if layer.layer_id in self._attention.layers:
            contain("looking at a layer", self._look, layer, queries)

    def _look(self, layer: Any, queries: Tensor) -> None:
        self._dtype = queries.dtype
        asking = queries[self._asking].clone()  # The next layer may get its queries in the same memory.
        self._attention.add(layer.layer_id, asking.view(-1, layer.tp_q_head_num, layer.qk_head_dim), layer.scaling)

    def _keys_at(self, layers: Sequence[int]) -> Iterator[Tensor]:
        return (keys.to(self._dtype) for keys in self._pool.keys_at(layers, self._slots))

    def scores(self) -> Scores | None:
        """[tokens], of this rank's heads. None: it did not see what it was to see. Waits for the device."""
        return self._attention.scores()


def of_all_ranks(told: Sequence[Scores | None]) -> Scores | None:
    """What all heads saw together, of what those of each rank saw. None: not all ranks have seen it."""
    known = [scores for scores in told if scores is not None]
    return sum(known[1:], start=known[0]) if known and len(known) == len(told) else None


_under_way: Sequence[Look] = ()


@contextmanager
def looking(looks: Sequence[Look]) -> Iterator[None]:
    """While the model runs the forward that they look at."""
    global _under_way
    _under_way = looks
    try:
        yield
    finally:
        _under_way = ()


def layer_has_attended(layer: Any, queries: Tensor) -> None:
    for look in _under_way:
        look.layer_has_attended(layer, queries)
