"""The donors of a process: who they are, what they hold, which are in use, and which must go."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

import numpy.typing as npt
import numpy as np

from semblend_core.contract import DeclineReason, TokenIds
from semblend_core.discovery import Geometry, PreparedDonor, Run, SpanIndex
from semblend_core.donors.eviction import POLICIES, EvictionPolicy

RECORD_BYTES = 600
"""Charged per donor for its record, id and bookkeeping in Python objects."""


@dataclass(slots=True)
class DonorRecord:
    """One donor. ``pins`` counts the plans under way that use it; a pinned donor is not evicted by budget."""

    serial: int
    namespace: str
    donor_id: str
    tokens: int
    resident: bool = True
    pins: int = 0


class DonorRegistry:
    """Threads: every method from any thread. Searching takes no lock of the registry, only the index's short one."""

    def __init__(
        self,
        *,
        geometry: Geometry | None = None,
        max_bytes: int = 4 * 1024**3,
        max_donors: int = 100_000,
        eviction: str = "lru",
    ) -> None:
        self.max_bytes = max_bytes
        self.max_donors = max_donors
        self._index = SpanIndex(geometry or Geometry())
        self._empty_index = SpanIndex(self._index.geometry)
        self._policy: EvictionPolicy[int] = POLICIES[eviction]()
        self._scopes: dict[str, int] = {}
        self._records: dict[int, DonorRecord] = {}
        self._by_id: dict[tuple[str, str], DonorRecord] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._records)

    @property
    def geometry(self) -> Geometry:
        return self._index.geometry

    @property
    def nbytes(self) -> int:
        return self._index.nbytes + RECORD_BYTES * len(self._records)

    def register(
        self, namespace: str, donor_id: str, tokens: TokenIds
    ) -> tuple[DeclineReason | None, list[DonorRecord]]:
        """Keep a donor, evicting others where a budget demands it: (why it was refused or None, whom it cost)."""
        evicted: list[DonorRecord] = []
        with self._lock:
            scope = self._scopes.setdefault(namespace, len(self._scopes))
        donor = self._index.prepare(tokens, scope)
        with self._lock:
            if (namespace, donor_id) in self._by_id:
                return DeclineReason.DUPLICATE_DONOR, evicted
            if self._empty_index.bytes_after_adding(donor) + RECORD_BYTES > self.max_bytes / 2:
                return DeclineReason.DONOR_TOO_LARGE, evicted  # Keeping it would cost most of the others.
            while len(self) >= self.max_donors or self._bytes_with(donor) > self.max_bytes:
                victim = self._policy.victim(lambda serial: self._records[serial].pins > 0)
                if victim is None:
                    return DeclineReason.DONOR_TOO_LARGE, evicted
                evicted.append(self._drop(self._records[victim]))
            serial = self._index.add(donor)
            record = DonorRecord(serial, namespace, donor_id, int(tokens.size))
            self._records[serial] = self._by_id[namespace, donor_id] = record
            self._policy.added(serial, record.tokens)
        return None, evicted

    def forget(self, namespace: str, donor_id: str) -> bool:
        with self._lock:
            record = self._by_id.get((namespace, donor_id))
            if record is not None:
                self._drop(record)
            return record is not None

    def find(self, namespace: str, query: TokenIds, min_run: int, deadline: float | None) -> list[Run] | None:
        """Runs the namespace's donors share with ``query``; None when out of time."""
        scope = self._scopes.get(namespace)
        return [] if scope is None else self._index.find(query, scope, min_run, deadline=deadline)

    def islands(self, query: TokenIds, wanted: npt.NDArray[np.int64], serial: int, min_run: int) -> list[Run]:
        return self._index.islands(query, wanted, serial, min_run)

    def preference(self, serial: int) -> tuple[int, int]:
        """(resident, recency): larger is better. A donor that is gone ranks last."""
        record = self._records.get(serial)
        return (-1, serial) if record is None else (int(record.resident), serial)

    def record_of(self, namespace: str, donor_id: str) -> DonorRecord | None:
        return self._by_id.get((namespace, donor_id))

    def has_donors(self, namespace: str) -> bool:
        return namespace in self._scopes

    def pin(self, serials: Iterable[int]) -> list[DonorRecord] | None:
        """Pin all of ``serials`` and count their use; None, pinning nothing, when one of them is gone."""
        with self._lock:
            try:
                records = [self._records[serial] for serial in dict.fromkeys(serials)]
            except KeyError:
                return None
            for record in records:
                record.pins += 1
                self._policy.used(record.serial)
            return records

    def unpin(self, records: Iterable[DonorRecord]) -> None:
        with self._lock:
            for record in records:
                record.pins -= 1

    def set_resident(self, namespace: str, donor_id: str, resident: bool) -> None:
        """Note whether a donor's KV is in the fastest tier. Unknown donors are ignored."""
        record = self._by_id.get((namespace, donor_id))
        if record is not None:
            record.resident = resident

    def export(self) -> list[tuple[DonorRecord, TokenIds]]:
        """All donors with their tokens, the next victim first."""
        with self._lock:
            return [(self._records[serial], self._index.tokens_of(serial)) for serial in self._policy.order()]

    def clear(self) -> None:
        with self._lock:
            for record in list(self._records.values()):
                self._drop(record)

    def check_integrity(self) -> None:
        with self._lock:
            self._index.check_integrity()
            assert len(self._records) == len(self._by_id) == len(self._index), "donors do not add up"
            assert sorted(self._policy.order()) == sorted(self._records), "the eviction policy lost a donor"
            assert self.nbytes <= self.max_bytes or len(self) == 0, "over the byte budget"
            assert len(self) <= self.max_donors, "over the donor budget"
            assert all(record.pins >= 0 for record in self._records.values()), "a donor is unpinned twice"

    def _drop(self, record: DonorRecord) -> DonorRecord:
        del self._records[record.serial]
        del self._by_id[record.namespace, record.donor_id]
        self._policy.removed(record.serial)
        self._index.remove(record.serial)
        return record

    def _bytes_with(self, donor: PreparedDonor) -> int:
        return self._index.bytes_after_adding(donor) + RECORD_BYTES * (len(self._records) + 1)
