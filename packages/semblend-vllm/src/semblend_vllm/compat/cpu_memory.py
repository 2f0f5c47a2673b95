"""vLLM's KV memory on CPUs, where a block is packed for the processor's vector unit.

How it is packed is not documented and differs by processor and type. So it is learnt: a block is written through
vLLM's own operator with numbers that say where each came from, and read back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semblend_core import Span
from semblend_core.kv import DonorKv, KvShape, LearnedShift, Rotation
from semblend_core.recompute import MeanShift
from semblend_core.serving.worker import Move
from semblend_vllm.compat.correcting import CopiedCorrection

Write = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
"""(keys, values, key cache, value cache, slots): vLLM's operator that stores freshly computed KV."""
_DIGIT = 128
"""Codes are written in digits small enough to be exact in every type."""


class PackedCpuMemory:
    """Layers of [blocks, kv_heads, block_size, key and value components], packed."""

    def __init__(self, layers: Sequence[Tensor], write: Write, rotation: Rotation) -> None:
        self._layers, self._write, self._rotation = list(layers), write, rotation
        _, self._heads, self.block_size, both = layers[0].shape
        self._dim = both // 2
        self.layers, self.device = len(layers), layers[0].device
        self.token_bytes = self.layers * self._heads * both * layers[0].element_size()
        self.shape = KvShape(self.layers, self._heads, self._dim, self._dim)
        self.learned: LearnedShift | None = None
        self._key_order, self._value_order = self._learn_order()

    def gather(self, block_ids: Sequence[int], tokens: int) -> DonorKv:
        used = torch.as_tensor(list(block_ids)[: -(-tokens // self.block_size)])
        parts = [self._unpacked(layer[used], tokens) for layer in self._layers]
        return DonorKv(torch.stack([keys for keys, _ in parts]), torch.stack([values for _, values in parts]))

    def scatter(self, block_ids: Sequence[int], moves: Sequence[Move]) -> None:
        for donor, span in moves:
            assert donor.values is not None
            slots = torch.from_numpy(self._slots(block_ids)[span.target_start : span.target_end])
            first = span.donor_start - donor.first_position
            part = slice(first, first + span.length)
            for layer, keys, values in zip(self._layers, donor.keys, donor.values, strict=True):
                turned = self._rotation.rotate(keys[part], span.shift)
                self._write(turned.contiguous(), values[part].contiguous(), *self._halves(layer), slots)

    def correction(
        self, block_ids: Sequence[int], spans: Sequence[Span], rows: npt.NDArray[np.int64], shift: MeanShift
    ) -> CopiedCorrection:
        return CopiedCorrection(self, self._slots(block_ids), spans, rows, shift, self._rotation, self.learned)

    def keys_at(self, layer: int, slots: Tensor) -> Tensor:
        return self.read_layer(layer, slots)[0]

    def read_layer(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        used, at = torch.unique(slots // self.block_size, return_inverse=True)
        keys, values = self._unpacked(self._layers[layer][used], used.numel() * self.block_size)
        rows = at * self.block_size + slots % self.block_size
        return keys[rows], values[rows]

    def write_layer(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        self._write(keys.contiguous(), values.contiguous(), *self._halves(self._layers[layer]), slots)

    def _slots(self, block_ids: Sequence[int]) -> npt.NDArray[np.int64]:
        blocks = np.fromiter(block_ids, np.int64, len(block_ids))
        return (blocks[:, None] * self.block_size + np.arange(self.block_size)).reshape(-1)

    def _halves(self, layer: Tensor) -> tuple[Tensor, Tensor]:
        blocks = layer.shape[0]
        keys, values = layer.view(blocks, self._heads, 2 * self.block_size, self._dim).chunk(2, dim=2)
        return keys, values

    def _unpacked(self, blocks: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        raw = blocks.reshape(-1, self._heads, 2, self.block_size * self._dim)
        parts = []
        for part, order in ((0, self._key_order), (1, self._value_order)):
            plain = raw[:, :, part].index_select(2, order).view(-1, self._heads, self.block_size, self._dim)
            parts.append(plain.transpose(1, 2).reshape(-1, self._heads, self._dim)[:tokens].contiguous())
        return parts[0], parts[1]

    def _learn_order(self) -> tuple[Tensor, Tensor]:
        """For keys and for values: where in a packed block each (token, component) lies."""
        size = self.block_size * self._dim
        codes = torch.arange(size).view(self.block_size, 1, self._dim)
        found = torch.zeros(2, size, dtype=torch.long)
        digits = 1
        while digits < size:
            block = torch.zeros(1, 1, self.block_size, 2 * self._dim, dtype=self._layers[0].dtype)
            coded = (codes // digits % _DIGIT).to(block.dtype).contiguous()
            keys, values = block.view(1, 1, 2 * self.block_size, self._dim).chunk(2, dim=2)
            self._write(coded, coded.clone(), keys, values, torch.arange(self.block_size))
            found += torch.stack([half.reshape(-1).long() for half in (keys, values)]) * digits
            digits *= _DIGIT
        if any(set(half.tolist()) != set(range(size)) for half in found):
            raise RuntimeError("vLLM packs KV on this processor in a way that could not be learnt")
        orders = torch.empty_like(found)
        orders.scatter_(1, found, torch.arange(size).expand(2, size))
        return orders[0], orders[1]
