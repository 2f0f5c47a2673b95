"""vLLM's KV memory behind three operations: take a prompt's KV out, bring donors' KV in, correct it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from semblend_core import Span
from semblend_core.kv import DonorKv, Moves, PagedKv, PagedMeanShift, Rotation, SlotTable, relocate, relocate_spans
from semblend_core.recompute import MeanShift

Move = tuple[DonorKv, Span]
"""A span, and the donor's KV or the part of it that holds the span."""


class LayerCorrection(Protocol):
    def apply(self, layer: int) -> None:
        """After the layer's rows were written, before anything attends to them."""


class EngineCache(Protocol):
    """The worker's KV pool. Runs on the current stream; no call waits for the device."""

    block_size: int
    layers: int
    token_bytes: int
    """Bytes of one token, all layers, K and V."""
    device: torch.device

    def gather(self, block_ids: Sequence[int], tokens: int) -> DonorKv:
        """A copy of the first ``tokens`` of a sequence."""

    def scatter(self, block_ids: Sequence[int], moves: Sequence[Move]) -> None:
        """Write spans into a sequence's blocks, keys turned to their places."""

    def correction(
        self, block_ids: Sequence[int], spans: Sequence[Span], rows: npt.NDArray[np.int64], shift: MeanShift
    ) -> LayerCorrection:
        """Made after the spans were written and before the forward computes ``rows``."""


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
            sources={"engine": self._table(block_ids)},
            target=SlotTable.of_donor(donor),
        )
        relocate(self._pool, PagedKv.from_donor(donor), moves, self._rotation)
        return donor

    def scatter(self, block_ids: Sequence[int], moves: Sequence[Move]) -> None:
        # A donor may come in several parts, each a source of its own.
        sources = {f"{span.donor_id}#{id(donor)}": donor for donor, span in moves}
        spans = [replace(span, donor_id=f"{span.donor_id}#{id(donor)}") for donor, span in moves]
        relocate_spans(sources, spans, self._pool, self._table(block_ids), self._rotation)

    def correction(
        self, block_ids: Sequence[int], spans: Sequence[Span], rows: npt.NDArray[np.int64], shift: MeanShift
    ) -> LayerCorrection:
        return PagedMeanShift(shift, spans, rows, self._pool, self._table(block_ids), self._rotation)

    def _table(self, block_ids: Sequence[int]) -> SlotTable:
        return SlotTable(np.fromiter(block_ids, np.int64, len(block_ids)), self.block_size)
