"""The KV of one donor, as every tier and every engine hands it over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


def indexable(part: Tensor) -> Tensor:
    """The same memory for operations that only move numbers: many of them know no fp8, whose bytes they get."""
    return part.view(torch.uint8) if part.dtype.itemsize == 1 else part


class InvalidKvError(ValueError):
    """KV tensors whose shapes, strides or types do not fit together."""


@dataclass(frozen=True, slots=True, eq=False)
class DonorKv:
    """K after rotary embedding, at the donor's own positions ``first_position``, ``first_position + 1``, ...

    The tensors belong to whoever made this; holders read them only.
    """

    keys: Tensor
    """[layers, tokens, kv_heads, key_dim]"""
    values: Tensor | None
    """[layers, tokens, kv_heads, value_dim]; None where K holds everything, as in MLA's latent cache."""
    first_position: int = 0

    def __post_init__(self) -> None:
        if self.keys.dim() != 4:
            raise InvalidKvError(f"keys must be [layers, tokens, kv_heads, key_dim], got {tuple(self.keys.shape)}")
        if self.first_position < 0:
            raise InvalidKvError(f"positions start at 0, got {self.first_position}")
        values = self.values
        if values is None:
            return
        if values.dim() != 4 or values.shape[:3] != self.keys.shape[:3]:
            raise InvalidKvError(f"values {tuple(values.shape)} do not go with keys {tuple(self.keys.shape)}")
        if values.device != self.keys.device or values.dtype != self.keys.dtype:
            raise InvalidKvError(
                f"values on {values.device} as {values.dtype}, keys on {self.keys.device} as {self.keys.dtype}"
            )

    @property
    def layers(self) -> int:
        return int(self.keys.shape[0])

    @property
    def tokens(self) -> int:
        return int(self.keys.shape[1])

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes + (0 if self.values is None else self.values.nbytes))

    def of_layers(self, layers: Sequence[int]) -> DonorKv:
        """A copy of some layers, in this order."""

        def of(part: Tensor) -> Tensor:
            return indexable(part)[list(layers)].view(part.dtype)

        return replace(self, keys=of(self.keys), values=None if self.values is None else of(self.values))
