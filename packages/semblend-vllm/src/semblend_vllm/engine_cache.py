"""vLLM's KV memory behind two operations: take a prompt's KV out, bring donors' KV in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from semblend_core import Span
from semblend_core.kv import DonorKv, Moves, PagedKv, Rotation, SlotTable, relocate


class EngineCache(Protocol):
    """The worker's KV pool. Runs on the current stream; neither call waits for the device."""

    block_size: int
    layers: int
    token_bytes: int
    """Bytes of one token, all layers, K and V."""
    device: torch.device

    def gather(self, block_ids: Sequence[int], tokens: int) -> DonorKv:
        """A copy of the first ``tokens`` of a sequence."""

    def scatter(self, block_ids: Sequence[int], donor: DonorKv, spans: Sequence[Span]) -> None:
        """Write ``spans``, which all come from ``donor``, into a sequence's blocks, keys turned to their places."""

    def read_layer(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of K and V [tokens, kv_heads, dim] of one layer."""

    def write_layer(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """The opposite."""


class PagedCache:
    """Any pool whose blocks are plain strided memory, as on GPUs."""

    def __init__(self, pool: PagedKv, rotation: Rotation) -> None:
        self._pool, self._rotation = pool, rotation
        self.block_size, self.layers = pool.block_size, pool.layers
        self.device = pool.device
        self._key_shape, self._value_shape = (tuple(views[0].shape[2:]) for views in (pool.keys, pool.values))
        per_layer = int(np.prod(self._key_shape) + np.prod(self._value_shape)) * pool.dtype.itemsize
        self.token_bytes = self.layers * per_layer

    def gather(self, block_ids: Sequence[int], tokens: int) -> DonorKv:
        keys, values = (
            torch.empty((self.layers, tokens, *shape), dtype=self._pool.dtype, device=self._pool.device)
            for shape in (self._key_shape, self._value_shape)
        )
        donor = DonorKv(keys, values)
        moves = Moves.build(
            [Span(0, "engine", 0, tokens)],
            sources={"engine": SlotTable(np.asarray(block_ids), self.block_size)},
            target=SlotTable.of_donor(donor),
        )
        relocate(self._pool, PagedKv.from_donor(donor), moves, self._rotation)
        return donor

    def scatter(self, block_ids: Sequence[int], donor: DonorKv, spans: Sequence[Span]) -> None:
        moves = Moves.build(
            spans,
            sources={span.donor_id: SlotTable.of_donor(donor) for span in spans},
            target=SlotTable(np.asarray(block_ids), self.block_size),
        )
        relocate(PagedKv.from_donor(donor), self._pool, moves, self._rotation)

    def read_layer(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        at = (slots // self.block_size, slots % self.block_size)
        return self._pool.keys[layer][at], self._pool.values[layer][at]

    def write_layer(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        at = (slots // self.block_size, slots % self.block_size)
        self._pool.keys[layer][at] = keys
        self._pool.values[layer][at] = values
