"""Donors in LMCache: in its memory here, or on a server that other processes share."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from semblend_core.contract import TenantReport, TokenIds, tenant_of
from semblend_core.kv.store.donor_file import DonorMetadata
from semblend_core.kv.store.kv_spec import KvSpec, LayerTensors, TokenRange, layers_of
from semblend_core.kv.store.lmcache_catalogue import LmcacheCatalogue, listed
from semblend_core.kv.store.lmcache_client import LmcacheClient, LmcacheKey
from semblend_core.kv.store.lmcache_engine import find_lmcache
from semblend_core.kv.store.lmcache_rows import TAIL_BYTES, pack, row_bytes, unpack
from semblend_core.kv.store.options import StoreDirectoryError, StoreOptions
from semblend_core.kv.store.side_stream import SideStream, wait
from semblend_core.kv.store.tier import Source, StorageTier
from semblend_core.kv.store.vocabulary import DonorKey, Quarantine, StoreDecline, StoreFaultError, Tier

logger = logging.getLogger(__name__)

STAGING_BYTES = 1024**3
"""Memory that LMCache takes here where the donors lie on a server: what is on its way, and what was used last."""

MOST_UNDELETED = 4096
"""Donors remembered to be deleted later. Beyond that a purge needs the list."""


@dataclass(frozen=True, slots=True, eq=False)
class LmcacheStorage:
    metadata: DonorMetadata
    key: LmcacheKey


class LmcacheTier(StorageTier):
    tier = Tier.LMCACHE

    def __init__(self, options: StoreOptions, device: torch.device) -> None:
        super().__init__()
        find_lmcache()
        self._url = options.lmcache_url
        held = options.lmcache_bytes
        # In memory the budget is all there is; LMCache needs a little more for what comes in while it is full.
        self._local_bytes = min(held, STAGING_BYTES) if self._url else held + held // 16
        self._catalogue = LmcacheCatalogue(options.lmcache_path) if options.lmcache_path else None
        self._side = SideStream(device)
        self._client: LmcacheClient | None = None
        self._row_bytes = 0
        self._opening = threading.Lock()
        self._undeleted: dict[str, LmcacheStorage] = {}
        """Donors that should be gone, and may not be."""

    def holds(self, spec: KvSpec) -> bool:
        return self._row_bytes in (0, row_bytes(spec)) and spec.tokens * row_bytes(spec) <= self._local_bytes

    def charge(self, source_key: DonorKey, spec: KvSpec, token_ids: TokenIds | None) -> int:
        return spec.tokens * row_bytes(spec)

    def write(self, source: Source) -> LmcacheStorage:
        if source.token_ids is None:
            raise StoreFaultError(StoreDecline.INVALID_KV, "LMCache finds donors by their tokens, and this has none")
        storage = _storage(listed(source.key, source.spec, source.token_ids, source.born))
        layers = source.layers
        with self._side.open(source.after):
            if layers is None:
                layers = layers_of(source.spec.empty(source.spec.tokens, torch.device("cpu")))
                source.fill(layers, self._side)
                wait(self._side.mark())
            rows = pack(source.spec, layers)
        name = storage.metadata.stem
        if self._catalogue is not None:
            try:  # Before it is stored: whatever becomes of this process, a purge finds it.
                self._catalogue.add(storage.metadata)
            except OSError as error:
                raise StoreFaultError(StoreDecline.LMCACHE_ERROR, f"it could not be listed: {error}") from error
        try:
            self._open(source.spec).store(storage.key, rows)
        except StoreFaultError:
            self._must_delete(storage)  # A part of it may have come there.
            raise
        self._undeleted.pop(name, None)
        self._delete_overdue()
        return storage

    def read(
        self, storage: LmcacheStorage, ranges: Sequence[TokenRange], layers: Sequence[LayerTensors], side: SideStream
    ) -> None:
        """Bring ``ranges``, one behind the other, into ``layers``, checked. As ``DiskReader.read`` does, and waits."""
        spec, offsets, filled = storage.metadata.spec, [], 0
        for start, stop in ranges:
            offsets.append(filled - start)
            filled += stop - start

        def take(first: int, rows: torch.Tensor) -> None:
            for (start, stop), offset in zip(ranges, offsets, strict=True):
                begin, end = max(start, first), min(stop, first + rows.shape[0])
                if begin < end:
                    unpack(rows[begin - first : end - first], spec, layers, begin + offset)

        with side.open():
            self._open(spec).load(storage.key, ranges, take)

    def discard(self, storage: object, *, scrub: bool = False) -> None:
        assert isinstance(storage, LmcacheStorage)
        self._delete(storage)

    def set_aside(self, storage: object, reason: Quarantine) -> None:
        """Damaged bytes are of no use to others either."""
        self.discard(storage)

    def scan(self) -> Iterator[LmcacheStorage]:
        """Donors that the catalogue lists and LMCache holds whole, the oldest first. Raises OSError."""
        for metadata in [] if self._catalogue is None else self._catalogue.scan():
            if metadata.token_ids is None or not self.holds(metadata.spec):
                continue
            storage = _storage(metadata)
            try:
                if self._open(metadata.spec).find(storage.key) == metadata.spec.tokens:
                    yield storage
            except StoreFaultError as fault:
                logger.warning("SemBlend could not look for donors in LMCache: %s", fault)
                return

    def purge(self, tenant: str) -> TenantReport:
        """Delete what other processes keep of a tenant, and what could not be deleted before: what there was."""
        found = TenantReport()
        for metadata in [] if self._catalogue is None else list(self._catalogue.scan()):
            if metadata.token_ids is not None and tenant_of(metadata.key.namespace) == tenant:
                found += TenantReport(stored=1, bytes=self.charge(metadata.key, metadata.spec, None))
                self._delete(_storage(metadata))
        for storage in list(self._undeleted.values()):
            self._delete(storage)
        return found

    def check_deleted(self) -> None:
        """StoreDirectoryError where LMCache was told to delete, and did not."""
        if self._undeleted:
            place = self._url or "this process"
            raise StoreDirectoryError(f"{len(self._undeleted)} donors may still lie in LMCache at {place}: purge again")

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _must_delete(self, storage: LmcacheStorage) -> None:
        self._undeleted[storage.metadata.stem] = storage
        while len(self._undeleted) > MOST_UNDELETED:
            self._undeleted.pop(next(iter(self._undeleted)), None)

    def _delete_overdue(self) -> None:
        """A few of what could not be deleted while the server was gone."""
        for storage in list(self._undeleted.values())[:4]:
            self._delete(storage)

    def _delete(self, storage: LmcacheStorage) -> None:
        name = storage.metadata.stem
        self._must_delete(storage)
        try:
            self._open(storage.metadata.spec).remove(storage.key)
        except Exception as error:  # The catalogue goes on listing it, so that a later purge finds it.
            logger.warning("SemBlend could not delete a donor from LMCache: %s", str(error) or type(error).__name__)
            return
        self._undeleted.pop(name, None)
        if self._catalogue is not None:
            self._catalogue.remove(storage.metadata)

    def open_for(self, token_bytes: int) -> None:
        """Open LMCache for donors of so many bytes a token."""
        self._open_for(token_bytes + TAIL_BYTES)

    def _open(self, spec: KvSpec) -> LmcacheClient:
        return self._open_for(row_bytes(spec))

    def _open_for(self, row_size: int) -> LmcacheClient:
        """LMCache must know how long a row is."""
        with self._opening:
            if self._client is None:
                self._client = LmcacheClient(self._url, self._local_bytes, row_size)
                self._row_bytes = row_size
            return self._client


def _storage(metadata: DonorMetadata) -> LmcacheStorage:
    assert metadata.token_ids is not None
    spec = metadata.spec
    identity = f"{metadata.key.donor_id}\0{spec.layers} {spec.kv_heads} {spec.dims} {spec.dtype} {spec.first_position}"
    donor = hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=12, person=b"semblend-lmc-v1")
    return LmcacheStorage(metadata, LmcacheKey(metadata.key.namespace, donor.hexdigest(), metadata.token_ids))
