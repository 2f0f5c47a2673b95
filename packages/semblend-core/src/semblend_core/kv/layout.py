"""Engines' KV memory as one thing: for each layer a strided view of keys and one of values.

Every layout is the same four dimensions [blocks, block_size, kv_heads, dim] under other strides, so one pair of views
per layer describes them all and nothing is copied. A token's *slot* is ``block * block_size + offset in the block``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semblend_core.kv.donor_kv import DonorKv, InvalidKvError, indexable

FP8_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
"""Where each fp8 type saturates."""
WIDEST_LOAD = 16
"""Bytes that a GPU thread moves at once, at most, and only from a multiple of this address."""
STORED_TYPES = (torch.float32, torch.float16, torch.bfloat16, *FP8_LARGEST)


def narrow(wide: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded to nearest even; fp8 saturates, where a plain conversion would make infinities or NaN. NaN stays NaN."""
    largest = FP8_LARGEST.get(dtype)
    return (wide if largest is None else wide.clamp(-largest, largest)).to(dtype)


@dataclass(frozen=True)
class Scales:
    """Of fp8, for each layer: what is stored times its scale is what was computed."""

    keys: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def are_one(self) -> bool:
        return {*self.keys, *self.values} <= {1.0}

    def of(self, layers: Sequence[int]) -> Scales:
        return Scales(tuple(self.keys[n] for n in layers), tuple(self.values[n] for n in layers))


@dataclass(frozen=True, eq=False)
class PagedKv:
    """Views of one KV pool, layer by layer. The memory belongs to the engine or donor that made it.

    All layers have the same shape, strides, type and device; a pool that has not is split by the caller. The scales
    are those of fp8 storage: what is stored times the scale is what was computed.
    """

    keys: tuple[Tensor, ...]
    """Per layer [blocks, block_size, kv_heads, key_dim]; the last dimension is contiguous."""
    values: tuple[Tensor, ...] = ()
    """Per layer [blocks, block_size, kv_heads, value_dim]; empty where keys hold everything (MLA's latent cache)."""
    key_scales: tuple[float, ...] | None = None
    """One per layer; None is 1.0 everywhere. Only with fp8."""
    value_scales: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _check_views("keys", self.keys)
        if self.values:
            _check_views("values", self.values)
            _check_values_fit(self.keys, self.values)
        _check_scales("key_scales", self.key_scales, self)
        _check_scales("value_scales", self.value_scales, self)

    @property
    def layers(self) -> int:
        return len(self.keys)

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return int(self.keys[0].shape[1])

    @property
    def slots(self) -> int:
        """How many tokens the pool holds; slots are 0 to this."""
        return int(self.keys[0].shape[0]) * self.block_size

    @property
    def dtype(self) -> torch.dtype:
        return self.keys[0].dtype

    @property
    def device(self) -> torch.device:
        return self.keys[0].device

    @cached_property
    def storages(self) -> frozenset[int]:
        """Addresses of the allocations the views lie in: pools that share one may overlap."""
        return frozenset(view.untyped_storage().data_ptr() for view in self.keys + self.values)

    @cached_property
    def layer_starts(self) -> npt.NDArray[np.int64]:
        """[2, layers]: how far each layer's keys and values begin from those of layer 0, in ``layer_unit`` elements."""
        return np.array(self._distances, np.int64) // (self.layer_unit * self.dtype.itemsize)

    @cached_property
    def layer_unit(self) -> int:
        """16 bytes where all layers begin at such a distance from the first, so that a kernel may count on it."""
        aligned = all(distance % WIDEST_LOAD == 0 for distances in self._distances for distance in distances)
        return WIDEST_LOAD // self.dtype.itemsize if aligned else 1

    @cached_property
    def _distances(self) -> list[list[int]]:
        parts = (self.keys, self.values or self.keys)
        return [[view.data_ptr() - views[0].data_ptr() for view in views] for views in parts]

    @cached_property
    def scale_table(self) -> npt.NDArray[np.float32]:
        """[4, layers]: key scales, value scales, and one divided by each."""
        ones = (1.0,) * self.layers
        scales = np.array([self.key_scales or ones, self.value_scales or ones], np.float32)
        return np.concatenate((scales, np.float32(1) / scales))

    @property
    def is_scaled(self) -> bool:
        return self.key_scales is not None or self.value_scales is not None

    @cached_property
    def stored(self) -> PagedKv:
        """The same memory by the numbers that are stored: KV of equal scales moves by them, and they cancel out."""
        return self.with_scales(None) if self.is_scaled else self

    def read(self, layer: int, at: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Copies of K and V [tokens, kv_heads, dim] at these blocks and places in them, as computed, in float32."""
        return self.read_keys(layer, at), self._read(self.values, layer, at, 1) if self.values else None

    def read_keys(self, layer: int, at: tuple[Tensor, Tensor]) -> Tensor:
        return self._read(self.keys, layer, at, 0)

    def _read(self, views: tuple[Tensor, ...], layer: int, at: tuple[Tensor, Tensor], part: int) -> Tensor:
        wide = indexable(views[layer])[at].view(self.dtype).float()
        return wide * float(self.scale_table[part, layer]) if self.is_scaled else wide

    def write(self, layer: int, at: tuple[Tensor, Tensor], keys: Tensor, values: Tensor | None) -> None:
        """The opposite, rounded once."""
        for views, scale, computed in ((self.keys, 2, keys), (self.values, 3, values)):
            if views and computed is not None:
                wide = computed * float(self.scale_table[scale, layer]) if self.is_scaled else computed
                indexable(views[layer])[at] = indexable(narrow(wide, self.dtype))

    def with_scales(
        self, key_scales: tuple[float, ...] | None, value_scales: tuple[float, ...] | None = None
    ) -> PagedKv:
        """The same memory, read and written as fp8 with these scales."""
        return replace(self, key_scales=key_scales, value_scales=value_scales)

    def of_layers(self, layers: Sequence[int]) -> PagedKv:
        """The same memory: some layers of it, in this order."""

        def taken(parts: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(parts[layer] for layer in layers)

        scales = [None if each is None else taken(each) for each in (self.key_scales, self.value_scales)]
        return PagedKv(taken(self.keys), taken(self.values) if self.values else (), *scales)

    def empty_donor(self, tokens: int) -> DonorKv:
        """A dense donor of this pool's shape, not filled yet."""
        keys, values = (
            torch.empty((self.layers, tokens, *parts[0].shape[2:]), dtype=self.dtype, device=self.device)
            if parts
            else None
            for parts in (self.keys, self.values)
        )
        assert keys is not None
        return DonorKv(keys, values)

    # --- The shapes that engines use -----------------------------------------------------------------------------

    @classmethod
    def from_joined(cls, layers: Sequence[Tensor], key_dim: int) -> PagedKv:
        """vLLM's [blocks, kv_heads, block_size, key_dim + value_dim], each row a key followed by its value."""
        _check_dims("layers", layers, 4, "[blocks, kv_heads, block_size, key_dim + value_dim]")
        if not 0 < key_dim < layers[0].shape[3]:
            raise InvalidKvError(f"key_dim {key_dim} does not split rows of {layers[0].shape[3]} components")
        rows = [layer.transpose(1, 2) for layer in layers]
        keys, values = (tuple(row[..., part] for row in rows) for part in (slice(key_dim), slice(key_dim, None)))
        return cls(keys, values)

    @classmethod
    def from_stacked(cls, layers: Sequence[Tensor], kv_axis: int) -> PagedKv:
        """K and V stacked on ``kv_axis``: vLLM's [2, blocks, block_size, kv_heads, dim] (axis 0) or
        [blocks, 2, block_size, kv_heads, dim] (axis 1).

        The order of the shape is meant, not that of the memory: an HND pool comes as the same shape, permuted.
        """
        _check_dims("layers", layers, 5, "[2, blocks, block_size, kv_heads, dim] or [blocks, 2, ...]")
        if kv_axis not in (0, 1) or any(layer.shape[kv_axis] != 2 for layer in layers):
            raise InvalidKvError(f"axis {kv_axis} of {tuple(layers[0].shape)} does not hold K and V")
        keys, values = (tuple(layer.select(kv_axis, part) for layer in layers) for part in (0, 1))
        return cls(keys, values)

    @classmethod
    def from_slots(
        cls,
        keys: Sequence[Tensor],
        values: Sequence[Tensor] = (),
        *,
        page_size: int = 1,
    ) -> PagedKv:
        """SGLang's separate buffers [slots, kv_heads, dim] of K and of V.

        Slots count the same with any ``page_size``; it only has to divide their number.
        """
        _check_dims("keys", keys, 3, "[slots, kv_heads, key_dim]")
        _check_dims("values", values, 3, "[slots, kv_heads, value_dim]")
        if page_size < 1 or any(buffer.shape[0] % page_size for buffer in (*keys, *values)):
            raise InvalidKvError(f"page_size {page_size} does not divide the slots of every buffer")
        paged_keys, paged_values = (
            tuple(buffer.view(-1, page_size, *buffer.shape[1:]) for buffer in buffers) for buffers in (keys, values)
        )
        return cls(paged_keys, paged_values)

    @classmethod
    def from_latent(cls, layers: Sequence[Tensor]) -> PagedKv:
        """MLA's latent cache [blocks, block_size, kv_lora_rank + qk_rope_head_dim]: one head, no values."""
        _check_dims("layers", layers, 3, "[blocks, block_size, kv_lora_rank + qk_rope_head_dim]")
        return cls(tuple(layer.unsqueeze(2) for layer in layers))

    @classmethod
    def from_donor(cls, donor: DonorKv) -> PagedKv:
        """A dense donor: one block as long as the donor. The slot of position p is ``p - donor.first_position``."""
        keys = tuple(donor.keys.unsqueeze(1).unbind())
        values = () if donor.values is None else tuple(donor.values.unsqueeze(1).unbind())
        return cls(keys, values)


def _check_views(what: str, views: Sequence[Tensor]) -> None:
    _check_dims(what, views, 4, "[blocks, block_size, kv_heads, dim]")
    first = views[0]
    if first.dtype not in STORED_TYPES:
        hint = ": view fp8 bytes as torch.float8_e4m3fn or torch.float8_e5m2" if first.dtype == torch.uint8 else ""
        raise InvalidKvError(f"{what} of {first.dtype} cannot be moved{hint}")
    if 0 in first.shape:
        raise InvalidKvError(f"{what} {tuple(first.shape)} hold nothing")
    if first.stride(3) != 1 and first.shape[3] > 1:
        raise InvalidKvError(f"the last dimension of {what} must be contiguous, got strides {first.stride()}")
    for layer, view in enumerate(views):
        if view.shape != first.shape or view.stride() != first.stride():
            raise InvalidKvError(
                f"{what} of layer {layer} are {tuple(view.shape)} with strides {view.stride()}, "
                f"those of layer 0 {tuple(first.shape)} with {first.stride()}"
            )
        if view.dtype != first.dtype or view.device != first.device:
            raise InvalidKvError(
                f"{what} of layer {layer} are {view.dtype} on {view.device}, those of layer 0 {first.dtype} "
                f"on {first.device}"
            )


def _check_dims(what: str, tensors: Sequence[Tensor], dims: int, shape: str) -> None:
    if not tensors and what != "values":
        raise InvalidKvError("a KV pool has at least one layer")
    for layer, tensor in enumerate(tensors):
        if tensor.dim() != dims:
            raise InvalidKvError(f"{what} of layer {layer} must be {shape}, got {tuple(tensor.shape)}")


def _check_values_fit(keys: tuple[Tensor, ...], values: tuple[Tensor, ...]) -> None:
    if len(values) != len(keys):
        raise InvalidKvError(f"{len(keys)} layers of keys, but {len(values)} of values")
    if values[0].shape[:3] != keys[0].shape[:3]:
        raise InvalidKvError(f"values {tuple(values[0].shape)} do not go with keys {tuple(keys[0].shape)}")
    if values[0].dtype != keys[0].dtype or values[0].device != keys[0].device:
        raise InvalidKvError(
            f"values on {values[0].device} as {values[0].dtype}, keys on {keys[0].device} as {keys[0].dtype}"
        )


def _check_scales(what: str, scales: tuple[float, ...] | None, pool: PagedKv) -> None:
    if scales is None:
        return
    if pool.dtype not in FP8_LARGEST:
        raise InvalidKvError(f"{what} go with fp8 storage, this pool is {pool.dtype}")
    if len(scales) != pool.layers:
        raise InvalidKvError(f"{what}: {len(scales)} of them for {pool.layers} layers")
    if not all(0 < scale < float("inf") for scale in scales):
        raise InvalidKvError(f"{what} must be positive and finite, got {scales}")
