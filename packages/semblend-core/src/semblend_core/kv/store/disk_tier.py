"""Donors as files."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from semblend_core.contract import TokenIds
from semblend_core.kv.store.clean_memory import clean_bytes
from semblend_core.kv.store.directory import StoreDirectory
from semblend_core.kv.store.donor_file import (
    DonorMetadata,
    FileLayout,
    Piece,
    chunk_checksums,
    largest_metadata,
    open_file,
    raw_bytes,
    read_all,
)
from semblend_core.kv.store.kv_spec import KvSpec, LayerTensors, TokenRange
from semblend_core.kv.store.side_stream import Mark, SideStream, wait
from semblend_core.kv.store.tier import Source, StorageTier
from semblend_core.kv.store.vocabulary import (
    CorruptDonorError,
    DonorKey,
    Quarantine,
    StoreDecline,
    StoreFaultError,
    Tier,
)

logger = logging.getLogger(__name__)

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
        nothing = np.zeros(0, np.uint32)
        generation = self._next_generation()
        bare = DonorMetadata(source.key, generation, source.spec, nothing, source.token_ids, source.born)
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

    def discard(self, storage: object, *, scrub: bool = False) -> None:
        assert isinstance(storage, DiskStorage)
        self.directory.delete(storage.stem)

    def set_aside(self, storage: object, reason: Quarantine) -> None:
        assert isinstance(storage, DiskStorage)
        self.directory.set_aside(storage.stem, reason)
        logger.warning("SemBlend set a damaged donor file aside (%s): %s", reason, storage.stem)

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


_STAGING_BYTES = 16 * 1024**2


class DiskReader:
    """One for each thread that reads: two pinned buffers, one filled from disk while the other is copied on."""

    def __init__(self, directory: StoreDirectory, device: torch.device) -> None:
        self._directory = directory
        self._pinned = device.type == "cuda"
        self._buffers: list[Tensor] = []
        self._in_use: list[Mark] = []
        self._turn = 0
        self._lock = threading.Lock()

    def read(
        self, storage: DiskStorage, ranges: Sequence[TokenRange], layers: Sequence[LayerTensors], side: SideStream
    ) -> None:
        """Bring ``ranges``, one behind the other, into ``layers``. CorruptDonorError for a damaged file, or OSError.

        The copies are issued on ``side`` when this returns, and all of what they copy has been verified.
        """
        layout = storage.layout
        with self._lock:
            with side.open():
                self._prepare(layout.largest_chunk())
            try:
                descriptor = open_file(self._directory.data_path(storage.stem))
            except FileNotFoundError as error:
                raise CorruptDonorError(Quarantine.MISSING_DATA, str(error)) from error
            try:
                if os.fstat(descriptor).st_size != layout.nbytes:
                    raise CorruptDonorError(Quarantine.TRUNCATED, "the file is not as long as it was")
                for layer, tensors in enumerate(layers):
                    for tensor, target in enumerate(tensors[: len(layout.spec.dims)]):
                        assert target is not None
                        self._read_tensor(descriptor, storage, tensor, layer, ranges, target, side)
            finally:
                os.close(descriptor)

    def scrub(self) -> None:
        """Overwrite what was read last. Waits for a read under way."""
        with self._lock:
            for mark, buffer in zip(self._in_use, self._buffers, strict=True):
                wait(mark)
                buffer.zero_()

    def _read_tensor(
        self,
        descriptor: int,
        storage: DiskStorage,
        tensor: int,
        layer: int,
        ranges: Sequence[TokenRange],
        target: Tensor,
        side: SideStream,
    ) -> None:
        spec, filled = storage.layout.spec, 0
        for start, stop in ranges:
            for piece in storage.layout.pieces(tensor, layer, start, stop, _STAGING_BYTES):
                rows = self._read_verified(descriptor, storage, piece)
                rows = rows.view(spec.dtype).view(piece.tokens, spec.kv_heads, spec.dims[tensor])
                first = max(start, piece.first_token)
                last = min(stop, piece.first_token + piece.tokens)
                wanted = rows[first - piece.first_token : last - piece.first_token]
                offset = filled + first - start
                with side.open():
                    target[offset : offset + last - first].copy_(wanted, non_blocking=True)
                self._in_use[self._turn] = side.mark()
            filled += stop - start

    def _read_verified(self, descriptor: int, storage: DiskStorage, piece: Piece) -> Tensor:
        self._turn = 1 - self._turn
        wait(self._in_use[self._turn])
        buffer = self._buffers[self._turn][: piece.nbytes]
        content = raw_bytes(buffer)
        if not read_all(descriptor, content, piece.offset):
            raise CorruptDonorError(Quarantine.TRUNCATED, "the file ends early")
        found = chunk_checksums(content, piece.chunk_bytes)
        expected = storage.metadata.checksums[piece.first_checksum : piece.first_checksum + len(found)]
        if found != expected.tolist():
            raise CorruptDonorError(Quarantine.CHECKSUM, f"damaged near byte {piece.offset}")
        return buffer

    def _prepare(self, chunk_bytes: int) -> None:
        size = max(_STAGING_BYTES, chunk_bytes)
        if not self._buffers or self._buffers[0].numel() < size:
            for mark in self._in_use:
                wait(mark)
            self._buffers = [clean_bytes(size, pinned=self._pinned) for _ in range(2)]
            self._in_use = [None, None]
