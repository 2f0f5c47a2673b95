"""The shape of a donor's KV without its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from semblend_core.kv.donor_kv import DonorKv

LayerTensors: TypeAlias = tuple[Tensor, Tensor | None]
"""One layer: keys [tokens, kv_heads, key_dim] and values [tokens, kv_heads, value_dim] or None."""

TokenRange: TypeAlias = tuple[int, int]
"""Tokens ``start`` to ``stop - 1`` of a donor, counted from its first kept token."""

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}
"""What the store keeps, by the name in a donor's metadata."""

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class KvSpec:
    layers: int
    tokens: int
    kv_heads: int
    key_dim: int
    value_dim: int | None
    """None where there are no values."""
    dtype: torch.dtype
    first_position: int

    @classmethod
    def of(cls, kv: DonorKv) -> KvSpec:
        layers, tokens, kv_heads, key_dim = kv.keys.shape
        value_dim = None if kv.values is None else kv.values.shape[3]
        return cls(layers, tokens, kv_heads, key_dim, value_dim, kv.keys.dtype, kv.first_position)

    @property
    def storable(self) -> bool:
        sizes = (self.layers, self.tokens, self.kv_heads, self.key_dim, 1 if self.value_dim is None else self.value_dim)
        return min(sizes) > 0 and self.dtype in DTYPE_NAMES

    @property
    def dims(self) -> tuple[int, ...]:
        """Length of one head's vector, per tensor."""
        return (self.key_dim,) if self.value_dim is None else (self.key_dim, self.value_dim)

    @property
    def row_bytes(self) -> tuple[int, ...]:
        """Bytes of one token in one layer, per tensor."""
        return tuple(self.kv_heads * dim * self.dtype.itemsize for dim in self.dims)

    @property
    def layer_bytes(self) -> int:
        return self.tokens * sum(self.row_bytes)

    @property
    def nbytes(self) -> int:
        return self.layers * self.layer_bytes

    def empty(self, tokens: int, device: torch.device) -> DonorKv:
        """Uninitialised KV of ``tokens`` tokens."""
        tensors = [
            torch.empty((self.layers, tokens, self.kv_heads, dim), dtype=self.dtype, device=device) for dim in self.dims
        ]
        return DonorKv(tensors[0], tensors[1] if len(tensors) == 2 else None, self.first_position)


def layers_of(kv: DonorKv) -> list[LayerTensors]:
    return [(kv.keys[i], None if kv.values is None else kv.values[i]) for i in range(kv.layers)]


def parts_of(kv: DonorKv, ranges: Sequence[TokenRange]) -> tuple[DonorKv, ...]:
    """One view per range of a donor that is whole in ``kv``."""
    return tuple(_cut(kv, start, stop, kv.first_position + start) for start, stop in ranges)


def packed_parts(kv: DonorKv, ranges: Sequence[TokenRange]) -> tuple[DonorKv, ...]:
    """One view per range where ``kv`` holds the ranges one behind the other."""
    parts, offset = [], 0
    for start, stop in ranges:
        parts.append(_cut(kv, offset, offset + stop - start, kv.first_position + start))
        offset += stop - start
    return tuple(parts)


def _cut(kv: DonorKv, start: int, stop: int, first_position: int) -> DonorKv:
    values = None if kv.values is None else kv.values[:, start:stop]
    return DonorKv(kv.keys[:, start:stop], values, first_position)
