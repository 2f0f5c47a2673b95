"""Donors in the engine's own memory."""

from __future__ import annotations

import torch

from semblend_core.contract import TokenIds
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.store.kv_spec import KvSpec, layers_of
from semblend_core.kv.store.side_stream import SideStream, wait
from semblend_core.kv.store.tier import Source, StorageTier
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

    def discard(self, storage: object) -> None:
        """Its last reference frees it; readers' streams were told to the allocator when they began."""
