"""The donors of a process: who they are, what they hold, which are in use, and which must go."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from semblend_core.contract import DeclineReason, Glimpse, TokenIds, tenant_of
from semblend_core.discovery import FoundRuns, Geometry, Hashes, PreparedDonor, Run, SpanIndex
from semblend_core.discovery.fingerprint import fingerprint
from semblend_core.donors.regret import Regret, RegretLedger, sample_of
from semblend_core.eviction import Entry, EvictionPolicy, policy_named

RECORD_BYTES = 600
"""Charged per donor for its record, id and bookkeeping in Python objects."""


@dataclass(slots=True)
class DonorRecord:
    """One donor. ``pins`` counts the plans under way that use it; a pinned donor is not evicted by budget."""

    serial: int
    namespace: str
    donor_id: str
    tokens: int
    sample: Hashes
    """A few of its fingerprints, by which it is known again after it went."""
    pins: int = 0


@dataclass(slots=True)
class _Scope:
    """A namespace as the index knows it, for as long as donors or registrations under way need it."""

    number: int
    users: int = 0


class DonorRegistry:
    """Threads: every method from any thread. Searching takes no lock of the
    registry, only the index's short one.

    Two locks, taken in this order: one serialises those who change the index, which may take long; the other,
    never held while the index works, guards records and pins, so that pinning never waits for a registration.
    """

    def __init__(
        self,
        *,
        geometry: Geometry | None = None,
        max_bytes: int = 4 * 1024**3,
        max_donors: int = 100_000,
        eviction: str = "priced_lru",
    ) -> None:
        self.max_bytes = max_bytes
        self.max_donors = max_donors
        self._index = SpanIndex(geometry or Geometry())
        self._empty_index = SpanIndex(self._index.geometry)
        self._policy: EvictionPolicy[Hashable] = policy_named(eviction, may_refuse=False)
        """Knows donors by namespace and id, so that one that comes back is no stranger."""
        self._regrets = RegretLedger()
        self._scopes: dict[str, _Scope] = {}
        self._scope_numbers = itertools.count()
        self._serials = itertools.count(1)
        self._records: dict[int, DonorRecord] = {}
        self._by_id: dict[tuple[str, str], DonorRecord] = {}
        self._pinned: dict[int, DonorRecord] = {}
        self._unswept: list[int] = []
        """Serials of donors that nobody can pin any more, and that the index still holds."""
        self._writing = threading.RLock()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._records)

    @property
    def geometry(self) -> Geometry:
        return self._index.geometry

    @property
    def nbytes(self) -> int:
        return self._index.nbytes + RECORD_BYTES * len(self._records)

    def register(
        self, namespace: str, donor_id: str, tokens: TokenIds, saved_ms: float = 0.0
    ) -> tuple[DeclineReason | None, list[DonorRecord]]:
        """Keep a donor, evicting others where a budget demands it: (why it was refused or None, whom it cost).

        ``saved_ms``: what it takes to compute it; 0: not known.
        """
        evicted: list[DonorRecord] = []
        kept = False
        with self._lock:
            scope = self._enter_scope(namespace)
        try:
            donor = self._index.prepare(tokens, scope)
            with self._writing:
                reason = self._make_room(namespace, donor_id, donor, evicted)
                if reason is None:
                    self._add(namespace, donor_id, donor, saved_ms)
                    kept = True
        finally:
            if not kept:
                with self._lock:
                    self._leave_scope(namespace)
        return reason, evicted

    def forget(self, namespace: str, donor_id: str, *, missed: bool = False) -> bool:
        """``missed``: its text goes with it, so that whoever wants it again has lost something."""
        with self._writing:
            record = self._by_id.get((namespace, donor_id))
            if record is not None:
                if missed:
                    self._remember(record)
                self._drop(record)
            return record is not None

    def regrets(self, namespace: str, tokens: TokenIds) -> list[Regret]:
        """Donors that went, and that a prompt of these tokens shows to be wanted again. Each is told once."""
        if not len(self._regrets):
            return []
        positions, hashes = fingerprint(tokens, self.geometry)
        least = self.geometry.guaranteed_run
        with self._writing:
            if not self._regrets.wanted(namespace, hashes):
                return []
            held = np.zeros(tokens.size, bool)
            for run in self.find(namespace, tokens, least, None) or ():
                held[run.start : run.end] = True
            told = [each for each in self._regrets.wanted(namespace, hashes[~held[positions]]) if each.tokens >= least]
            for each in told:
                self._regrets.forget((each.namespace, each.donor_id))
            return told

    def forget_tenant(self, tenant: str) -> int:
        """No donor of the tenant can be pinned from now on. How many there were; ``sweep`` takes them out of the index.

        Quick: taking one out of the index takes as long as putting it in.
        """
        with self._writing, self._lock:
            gone = [record for record in self._records.values() if tenant_of(record.namespace) == tenant]
            self._unswept += [self._unlist(record).serial for record in gone]
            self._regrets.forget_tenant(tenant)
            self._policy.forget_ghosts(lambda name: tenant_of(cast(tuple[str, str], name)[0]) == tenant)
        return len(gone)

    def note_copied(self, namespace: str, donor_id: str, tokens: int) -> None:
        """A newer donor holds its first ``tokens`` too."""
        with self._lock:
            self._policy.note_copied((namespace, donor_id), tokens)

    def sweep(self) -> None:
        """Take out of the index whatever was forgotten. Others come in between."""
        while self._unswept:
            with self._writing:
                if self._unswept:
                    self._index.remove(self._unswept.pop())
            time.sleep(0)  # Whoever waits for the lock would otherwise hardly get it.

    def glimpse(self, namespace: str, query: TokenIds) -> Glimpse | None:
        """What ``find`` would find, more or less; None: it cannot be told now."""
        scope = self._scopes.get(namespace)
        return None if scope is None else self._index.glimpse(query, scope.number)

    def find(
        self, namespace: str, query: TokenIds, min_run: int, deadline: float | None, glimpse: Glimpse | None = None
    ) -> FoundRuns | None:
        """Runs the namespace's donors share with ``query``; None when out of time. ``glimpse``: of the same query."""
        scope = self._scopes.get(namespace)
        if scope is None:
            return FoundRuns()
        return self._index.find(query, scope.number, min_run, deadline=deadline, glimpse=glimpse)

    def most_alike(
        self, namespace: str, prompt: TokenIds, cover: list[Run], found: FoundRuns, deadline: float | None
    ) -> list[Run]:
        """``cover`` piece by piece, each from the donor that read most like ``prompt`` before it."""
        scope = self._scopes.get(namespace)
        if not cover or found.repeated is None or scope is None:
            return cover
        kept = self._records.__contains__
        return self._index.most_alike(prompt, scope.number, cover, found.repeated, kept, deadline=deadline)

    def islands(
        self, query: TokenIds, wanted: npt.NDArray[np.int64], serial: int, min_run: int, within: range | None = None
    ) -> list[Run]:
        return self._index.islands(query, wanted, serial, min_run, within)

    def preference(self, serial: int) -> tuple[bool, int]:
        """(still kept, recency): larger is better."""
        return serial in self._records, serial

    def record_of(self, namespace: str, donor_id: str) -> DonorRecord | None:
        return self._by_id.get((namespace, donor_id))

    def tokens_of(self, namespace: str, donor_id: str) -> TokenIds | None:
        """A copy of a donor's tokens; None where it is not known."""
        record = self.record_of(namespace, donor_id)
        return None if record is None else self._index.tokens_of(record.serial)

    def has_donors(self, namespace: str) -> bool:
        return namespace in self._scopes

    def pin(self, serials: Iterable[int]) -> list[DonorRecord] | None:
        """Pin all of ``serials`` and count their use; None, pinning nothing, when one of them is gone."""
        now = time.monotonic()
        with self._lock:
            try:
                records = [self._records[serial] for serial in dict.fromkeys(serials)]
            except KeyError:
                return None
            for record in records:
                record.pins += 1
                self._pinned[record.serial] = record
                self._policy.touch((record.namespace, record.donor_id), now)
            return records

    def unpin(self, records: Iterable[DonorRecord]) -> None:
        with self._lock:
            for record in records:
                record.pins -= 1
                if record.pins == 0:
                    self._pinned.pop(record.serial, None)

    def clear(self) -> None:
        """Forget all donors at once."""
        with self._writing, self._lock:
            for record in self._records.values():
                self._policy.remove((record.namespace, record.donor_id), evicted=False)
                self._leave_scope(record.namespace)
            self._policy.forget_ghosts()
            self._regrets.clear()
            self._records.clear()
            self._by_id.clear()
            self._pinned.clear()
            self._unswept.clear()
            self._index = SpanIndex(self._index.geometry)

    def check_integrity(self) -> None:
        with self._writing, self._lock:
            self._index.check_integrity()
            assert len(self._records) == len(self._by_id), "donors do not add up"
            assert len(self._records) + len(self._unswept) == len(self._index), "the index holds others"
            assert set(self._policy) == set(self._by_id), "the eviction policy lost a donor"
            self._policy.check_integrity()
            self._regrets.check_integrity()
            assert self.nbytes <= self.max_bytes or len(self) == 0, "over the byte budget"
            assert len(self) <= self.max_donors, "over the donor budget"
            assert all(record.pins >= 0 for record in self._records.values()), "a donor is unpinned twice"
            pinned = {serial for serial, record in self._records.items() if record.pins}
            assert pinned == set(self._pinned), "the pinned donors do not add up"
            users = Counter(record.namespace for record in self._records.values())
            assert set(users) <= set(self._scopes), "a donor has no scope"
            assert all(self._scopes[name].users >= users[name] for name in users), "a scope is left too early"

    def _make_room(
        self, namespace: str, donor_id: str, donor: PreparedDonor, evicted: list[DonorRecord]
    ) -> DeclineReason | None:
        if (namespace, donor_id) in self._by_id:
            return DeclineReason.DUPLICATE_DONOR
        alone = self._empty_index.bytes_after_adding(donor) + RECORD_BYTES
        if alone > self.max_bytes / 2:
            return DeclineReason.DONOR_TOO_LARGE  # Keeping it would cost most of the others.
        if self._bytes_with(donor) > self.max_bytes:
            self.sweep()
        while len(self) >= self.max_donors or self._bytes_with(donor) > self.max_bytes:
            with self._lock:
                # What can never fit beside the pinned donors must not cost the others their place.
                held = sum(self._index.bytes_of(serial) + RECORD_BYTES for serial in self._pinned)
                fits = alone + held <= self.max_bytes and len(self._pinned) < self.max_donors
                victim = self._policy.victim(self._is_pinned) if fits else None
                if victim is None:
                    return DeclineReason.DONOR_TOO_LARGE
                record = self._unlist(self._by_id[cast(tuple[str, str], victim)], evicted=True)
            self._remember(record)
            self._index.remove(record.serial)
            evicted.append(record)
        return None

    def _add(self, namespace: str, donor_id: str, donor: PreparedDonor, saved_ms: float) -> None:
        """The record comes first: a donor that can be found can be pinned."""
        sample = sample_of(donor.hashes, int(donor.tokens.size) // (self.geometry.guaranteed_run + 1))
        record = DonorRecord(next(self._serials), namespace, donor_id, int(donor.tokens.size), sample)
        with self._lock:
            self._records[record.serial] = self._by_id[namespace, donor_id] = record
            size = record.tokens
            entry = Entry(tokens=size, bytes=size, prompt_tokens=size, saved_ms=saved_ms)
            self._policy.admit((namespace, donor_id), entry, time.monotonic())
        try:
            self._index.add(donor, record.serial)
        except BaseException:
            with self._lock:
                del self._records[record.serial], self._by_id[namespace, donor_id]
                self._policy.remove((namespace, donor_id), evicted=False)
            raise

    def _drop(self, record: DonorRecord) -> None:
        with self._lock:
            self._unlist(record)
        self._index.remove(record.serial)

    def _remember(self, record: DonorRecord) -> None:
        self._regrets.went(record.namespace, record.donor_id, record.tokens, record.sample)

    def _is_pinned(self, name: Hashable) -> bool:
        return self._by_id[cast(tuple[str, str], name)].pins > 0

    def _unlist(self, record: DonorRecord, *, evicted: bool = False) -> DonorRecord:
        """From here on nobody can pin the donor."""
        del self._records[record.serial]
        del self._by_id[record.namespace, record.donor_id]
        self._pinned.pop(record.serial, None)
        self._policy.remove((record.namespace, record.donor_id), evicted=evicted)
        self._leave_scope(record.namespace)
        return record

    def _enter_scope(self, namespace: str) -> int:
        scope = self._scopes.get(namespace)
        if scope is None:
            scope = self._scopes[namespace] = _Scope(next(self._scope_numbers))
        scope.users += 1
        return scope.number

    def _leave_scope(self, namespace: str) -> None:
        scope = self._scopes[namespace]
        scope.users -= 1
        if not scope.users:
            del self._scopes[namespace]

    def _bytes_with(self, donor: PreparedDonor) -> int:
        return self._index.bytes_after_adding(donor) + RECORD_BYTES * (len(self._records) + 1)
