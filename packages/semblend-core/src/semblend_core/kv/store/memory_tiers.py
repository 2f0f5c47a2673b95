"""The two tiers in memory: the engine's own, and pinned host memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from semblend_core.contract import TokenIds
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.store.kv_spec import KvSpec, LayerTensors, layers_of
from semblend_core.kv.store.side_stream import SideStream, wait
from semblend_core.kv.store.slab_pool import Extent, SlabPool, aligned
from semblend_core.kv.store.tier import FragmentedError, Source, StorageTier
from semblend_core.kv.store.vocabulary import DonorKey, Tier


class DeviceTier(StorageTier):
    """A storage is a DonorKv of its own, made here or given; readers get views of it."""

    tier = Tier.DEVICE

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._side = SideStream(device)

    def charge(self, source_key: DonorKey, spec: KvSpec, token_ids: TokenIds | None) -> int:
        return spec.nbytes

    def write(self, source: Source) -> DonorKv:
        if source.given is not None and source.given.keys.device == self._device:
            wait(source.after)
            return source.given
        # Allocated on the side stream: memory that the engine freed a moment ago may still be in use on its own.
        with self._side.open(source.after):
            kept = source.spec.empty(source.spec.tokens, self._device)
            source.fill(layers_of(kept), self._side)
            done = self._side.mark()
        wait(done)
        return kept

    def discard(self, storage: object, *, scrub: bool = False) -> None:
        """Its last reference frees it; readers' streams were told to the allocator when they began.

        Never overwritten: a reader may still hold a view of it.
        """


@dataclass(frozen=True, slots=True, eq=False)
class HostStorage:
    """Each layer lies in a place of its own, keys then values: small pieces find room where a whole donor would not."""

    layers: tuple[LayerTensors, ...]
    extents: tuple[Extent, ...]


class HostTier(StorageTier):
    tier = Tier.HOST

    def __init__(self, host_bytes: int, slab_bytes: int, device: torch.device) -> None:
        super().__init__()
        self.pool = SlabPool(host_bytes, slab_bytes, pinned=device.type == "cuda")
        self._side = SideStream(device)

    def grow(self) -> bool:
        """Pin one more slab, with the engine's own device current. False when all are there. Background only."""
        with self._side.open():
            return self.pool.grow()

    def holds(self, spec: KvSpec) -> bool:
        return self.pool.fits(_extent_bytes(spec), spec.layers)

    def charge(self, source_key: DonorKey, spec: KvSpec, token_ids: TokenIds | None) -> int:
        return spec.layers * _extent_bytes(spec)

    def write(self, source: Source) -> HostStorage:
        storage = self._allocate(source.spec)
        try:
            with self._side.open(source.after):
                source.fill(storage.layers, self._side)
                done = self._side.mark()
            wait(done)
        except BaseException:
            wait(self._side.mark())  # No copy may still land in memory that goes to the next donor.
            self.discard(storage)
            raise
        return storage

    def discard(self, storage: object, *, scrub: bool = False) -> None:
        assert isinstance(storage, HostStorage)
        for extent in storage.extents if scrub else ():
            self.pool.bytes_of(extent, extent.size).zero_()
        self.pool.give(storage.extents)

    def _allocate(self, spec: KvSpec) -> HostStorage:
        sizes = [_extent_bytes(spec)] * spec.layers
        extents = self.pool.take(sizes)
        while extents is None:
            grown = self.grow()
            # Asked again even so: another thread may have pinned the last slab since.
            extents = self.pool.take(sizes)
            if extents is None and not grown:
                raise FragmentedError
        return HostStorage(tuple(self._layer(extent, spec) for extent in extents), tuple(extents))

    def _layer(self, extent: Extent, spec: KvSpec) -> LayerTensors:
        memory = self.pool.bytes_of(extent, extent.size)
        tensors, offset = [], 0
        for dim, row in zip(spec.dims, spec.row_bytes, strict=True):
            flat = memory[offset : offset + spec.tokens * row].view(spec.dtype)
            tensors.append(flat.view(spec.tokens, spec.kv_heads, dim))
            offset += aligned(spec.tokens * row)
        return tensors[0], tensors[1] if len(tensors) == 2 else None


def _extent_bytes(spec: KvSpec) -> int:
    return sum(aligned(spec.tokens * row) for row in spec.row_bytes)
