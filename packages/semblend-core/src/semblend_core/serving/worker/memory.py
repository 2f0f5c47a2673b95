"""An engine's KV memory behind three operations: take a prompt's KV out, bring donors' KV in, correct it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from semblend_core.contract import Span
from semblend_core.kv import DonorKv, KvShape, LearnedShift, PagedKv, Rotation, SlotTable
from semblend_core.kv.pool import KvPool
from semblend_core.recompute import MeanShift

Move = tuple[DonorKv, Span]
"""A span, and the donor's KV or the part of it that holds the span."""


class LayerCorrection(Protocol):
    def apply(self, layer: int) -> None:
        """After the layer's rows were written, before anything attends to them."""


class KvMemory(Protocol):
    """The worker's KV pool. Runs on the current stream; no call waits for the device."""

    block_size: int
    layers: int
    token_bytes: int
    """Bytes of one token, all layers, K and V."""
    device: torch.device
    shape: KvShape
    learned: LearnedShift | None
    """The correction that was fitted for the weights whose KV this is."""

    def gather(self, block_ids: Sequence[int], tokens: int) -> DonorKv:
        """A copy of the first ``tokens`` of a sequence."""

    def scatter(self, block_ids: Sequence[int], moves: Sequence[Move]) -> None:
        """Write spans into a sequence's blocks, keys turned to their places."""

    def correction(
        self, block_ids: Sequence[int], spans: Sequence[Span], rows: npt.NDArray[np.int64], shift: MeanShift
    ) -> LayerCorrection:
        """Made after the spans were written and before the forward computes ``rows``."""

    def keys_at(self, layers: Iterable[int], slots: torch.Tensor) -> Iterator[torch.Tensor]:
        """Copies of K [tokens, kv_heads, dim], layer by layer when it is asked for.

        Slots count through all blocks, on the pool's device.
        """


class PagedMemory:
    """Any pool whose blocks are plain strided memory, as on GPUs."""

    def __init__(self, views: PagedKv, rotation: Rotation) -> None:
        self._pool = KvPool(views, rotation)
        self.block_size, self.layers, self.device = views.block_size, views.layers, views.device
        self.token_bytes, self.shape = self._pool.token_bytes, self._pool.shape

    @property
    def learned(self) -> LearnedShift | None:
        return self._pool.learned

    @learned.setter
    def learned(self, learned: LearnedShift | None) -> None:
        self._pool.learned = learned

    def gather(self, block_ids: Sequence[int], tokens: int) -> DonorKv:
        return self._pool.take(self._table(block_ids), tokens)

    def scatter(self, block_ids: Sequence[int], moves: Sequence[Move]) -> None:
        self._pool.bring(moves, self._table(block_ids))

    def correction(
        self, block_ids: Sequence[int], spans: Sequence[Span], rows: npt.NDArray[np.int64], shift: MeanShift
    ) -> LayerCorrection:
        return self._pool.correction(shift, spans, rows, self._table(block_ids))

    def keys_at(self, layers: Iterable[int], slots: torch.Tensor) -> Iterator[torch.Tensor]:
        return self._pool.keys_at(layers, slots)

    def _table(self, block_ids: Sequence[int]) -> SlotTable:
        return SlotTable(np.fromiter(block_ids, np.int64, len(block_ids)), self.block_size)
