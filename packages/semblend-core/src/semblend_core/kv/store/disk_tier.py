"""Donors as files."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from semblend_core.contract import TokenIds
from semblend_core.kv.store.directory import StoreDirectory
from semblend_core.kv.store.donor_file import FileLayout
from semblend_core.kv.store.donor_metadata import DonorMetadata, largest_metadata
from semblend_core.kv.store.kv_spec import KvSpec
from semblend_core.kv.store.side_stream import SideStream
from semblend_core.kv.store.tier import Source, StorageTier
from semblend_core.kv.store.vocabulary import CorruptDonorError, DonorKey, StoreDecline, StoreFaultError, Tier

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True, eq=False)
class DiskStorage:
    metadata: DonorMetadata
    layout: FileLayout

    @property
    def stem(self) -> str:
        return self.metadata.stem


class DiskTier(StorageTier):
    tier = Tier.DISK

    def __init__(self, directory: StoreDirectory, device: torch.device) -> None:
        super().__init__()
        self.directory = directory
        self._side = SideStream(device)
        self._last_generation = 0

    def charge(self, source_key: DonorKey, spec: KvSpec, token_ids: TokenIds | None) -> int:
        layout = FileLayout(spec)
        return layout.nbytes + largest_metadata(source_key, layout, token_ids)

    def write(self, source: Source) -> DiskStorage:
        assert source.layers is not None, "a donor on disk has no slower place to come from"
        layout = FileLayout(source.spec)
        bare = DonorMetadata(source.key, self._next_generation(), source.spec, np.zeros(0, np.uint32), source.token_ids)
        try:
            if self.directory.free_bytes() < self.charge(source.key, source.spec, source.token_ids):
                raise StoreFaultError(StoreDecline.DISK_FULL, "the file system has too little room")
            with self._side.open(source.after):
                checksums = self.directory.write_data(bare.stem, layout, source.layers)
            metadata = replace(bare, checksums=checksums)
            self.directory.write_metadata(metadata)
        except OSError as error:
            self.directory.delete(bare.stem)
            full = error.errno in _FULL
            raise StoreFaultError(StoreDecline.DISK_FULL if full else StoreDecline.DISK_ERROR, str(error)) from error
        except BaseException:
            self.directory.delete(bare.stem)
            raise
        return DiskStorage(metadata, layout)

    def discard(self, storage: object) -> None:
        assert isinstance(storage, DiskStorage)
        self.directory.delete(storage.stem)

    def scan(self) -> Iterator[DiskStorage | CorruptDonorError]:
        """Every donor on disk, the oldest first, and what is wrong with the others."""
        found = list(self.directory.scan())
        yield from (each for each in found if isinstance(each, CorruptDonorError))
        whole = [each for each in found if isinstance(each, DonorMetadata)]
        for metadata in sorted(whole, key=lambda metadata: metadata.generation):
            self._last_generation = max(self._last_generation, metadata.generation)
            yield DiskStorage(metadata, FileLayout(metadata.spec))

    def _next_generation(self) -> int:
        # Time, so that it grows over restarts; never the same twice, whatever the clock does.
        self._last_generation = max(self._last_generation + 1, time.time_ns())
        return self._last_generation
