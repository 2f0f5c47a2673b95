"""vLLM's KV memory on CPUs, where a block is packed for the processor's vector unit.

How it is packed is not documented and differs by processor and type. So it is learnt: a block is written through
vLLM's own operator with numbers that say where each came from, and read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semblend_core import Span
from semblend_core.kv import DonorKv, KvShape, LearnedShift, Rotation, Scales, indexable, narrow
from semblend_core.recompute import MeanShift
from semblend_core.serving.worker import Move
from semblend_vllm.compat.correcting import CopiedCorrection

Write = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
"""(keys, values, key cache, value cache, slots): vLLM's operator that stores freshly computed KV."""
_DIGIT = {torch.float8_e4m3fn: 16, torch.float8_e5m2: 8}
_OTHER_DIGIT = 128
"""Codes are written in digits small enough to be exact in the pool's type."""


class PackedCpuMemory:
    """Layers of [blocks, kv_heads, block_size, key and value components], packed."""

    def __init__(
        self, layers: Sequence[Tensor], write: Write, rotation: Rotation, scales: Scales | None = None
    ) -> None:
        """``scales``: of fp8, where they are not 1."""
        self._layers, self._write, self._rotation, self._scales = list(layers), write, rotation, scales
        self._dtype, self._is_fp8 = layers[0].dtype, layers[0].element_size() == 1
        _, self._heads, self.block_size, both = layers[0].shape
        self._dim = both // 2
        self.layers, self.device = len(layers), layers[0].device
        self.token_bytes = self.layers * self._heads * both * layers[0].element_size()
        self.shape = KvShape(self.layers, self._heads, self._dim, self._dim)
        self.learned: LearnedShift | None = None
        self._key_order, self._value_order = self._learn_order()

    def gather(self, block_ids: Sequence[int], tokens: int) -> DonorKv:
        used = torch.as_tensor(list(block_ids)[: -(-tokens // self.block_size)])
        parts = [self._unpacked(indexable(layer)[used], tokens) for layer in self._layers]
        return DonorKv(torch.stack([keys for keys, _ in parts]), torch.stack([values for _, values in parts]))

    def scatter(self, block_ids: Sequence[int], moves: Sequence[Move]) -> None:
        for donor, span in moves:
            assert donor.values is not None
            slots = torch.from_numpy(self._slots(block_ids)[span.target_start : span.target_end])
            first = span.donor_start - donor.first_position
            part = slice(first, first + span.length)
            for layer, keys, values in zip(self._layers, donor.keys, donor.values, strict=True):
                turned = self._rotation.rotate(keys[part], span.shift)
                self._store(layer, slots, turned, values[part])

    def correction(
        self, block_ids: Sequence[int], spans: Sequence[Span], rows: npt.NDArray[np.int64], shift: MeanShift
    ) -> CopiedCorrection:
        return CopiedCorrection(self, self._slots(block_ids), spans, rows, shift, self._rotation, self.learned)

    def keys_at(self, layers: Iterable[int], slots: Tensor) -> Iterator[Tensor]:
        return (self.read_layer(layer, slots)[0] for layer in layers)

    def read_layer(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Of fp8 what was computed, in float32."""
        used, at = torch.unique(slots // self.block_size, return_inverse=True)
        keys, values = self._unpacked(indexable(self._layers[layer])[used], used.numel() * self.block_size)
        rows = at * self.block_size + slots % self.block_size
        if not self._is_fp8:
            return keys[rows], values[rows]
        key_scale, value_scale = self._scales_of(layer)
        return indexable(keys)[rows].view(self._dtype).float() * key_scale, (
            indexable(values)[rows].view(self._dtype).float() * value_scale
        )

    def write_layer(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        if self._is_fp8:
            scaled = zip((keys, values), self._scales_of(layer), strict=True)
            keys, values = (narrow(part / scale, self._dtype) for part, scale in scaled)
        self._store(self._layers[layer], slots, keys, values)

    def _store(self, layer: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """[tokens, kv_heads, dim], which have the layer's type."""
        if not self._is_fp8:
            self._write(keys.contiguous(), values.contiguous(), *self._halves(layer), slots)
            return
        # vLLM's operator takes numbers and rounds them, and drops the sign of a zero. These are rounded: bytes move.
        packed = indexable(layer).view(layer.shape[0], self._heads, 2, self.block_size * self._dim)
        blocks, heads = (slots // self.block_size)[:, None, None], torch.arange(self._heads)[None, :, None]
        for part, order, given in ((0, self._key_order, keys), (1, self._value_order, values)):
            places = order.view(self.block_size, self._dim)[slots % self.block_size]
            packed[blocks, heads, part, places[:, None]] = indexable(given)

    def _scales_of(self, layer: int) -> tuple[float, float]:
        return (1.0, 1.0) if self._scales is None else (self._scales.keys[layer], self._scales.values[layer])

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
            tokens_of_part = plain.transpose(1, 2).reshape(-1, self._heads, self._dim)[:tokens]
            parts.append(tokens_of_part.contiguous().view(self._dtype))
        return parts[0], parts[1]

    def _learn_order(self) -> tuple[Tensor, Tensor]:
        """For keys and for values: where in a packed block each (token, component) lies."""
        size = self.block_size * self._dim
        codes = torch.arange(size).view(self.block_size, 1, self._dim)
        found = torch.zeros(2, size, dtype=torch.long)
        digits = 1
        base = _DIGIT.get(self._dtype, _OTHER_DIGIT)
        while digits < size:
            block = torch.zeros(1, 1, self.block_size, 2 * self._dim).to(self._dtype)
            coded = (codes // digits % base).to(block.dtype).contiguous()
            keys, values = block.view(1, 1, 2 * self.block_size, self._dim).chunk(2, dim=2)
            self._write(coded, coded.clone(), keys, values, torch.arange(self.block_size))
            found += torch.stack([half.float().reshape(-1).long() for half in (keys, values)]) * digits
            digits *= base
        if any(set(half.tolist()) != set(range(size)) for half in found):
            raise RuntimeError("vLLM packs KV on this processor in a way that could not be learnt")
        orders = torch.empty_like(found)
        orders.scatter_(1, found, torch.arange(size).expand(2, size))
        return orders[0], orders[1]
