"""The donors of all router replicas, as one replica knows them.

Each replica applies its own changes and those of the others by one rule: for every donor the latest event counts. So
duplicates and any order of arrival end in the same donors.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from semblend_core import Namespace, TokenIds
from semblend_dynamo.dynamo.events import (
    Change,
    DonorEvent,
    DonorEvicted,
    DonorRegistered,
    DonorsPurged,
    GenerationReset,
)
from semblend_dynamo.dynamo.residency import WorkerRank
from semblend_dynamo.placement import DonorBook, DonorKey, Finding

TOMBSTONES = 100_000
"""Donors remembered as gone, so that a late event does not bring them back."""
PURGES = 10_000
NOWHERE = WorkerRank(0, 0)
ALL = ""


@dataclass(frozen=True, slots=True)
class Listeners:
    """Told of donors that come and go in this replica, whoever caused it."""

    came: Callable[[Namespace, str, TokenIds], None] = lambda namespace, donor_id, tokens: None
    left: Callable[[Namespace, str], None] = lambda namespace, donor_id: None


@dataclass(slots=True)
class _Known:
    namespace: Namespace
    stamp: int
    worker: WorkerRank
    since: float


class SharedDonors:
    """Thread-safe. ``publish`` is called with each event of this replica, in order, under the lock: it only queues."""

    def __init__(
        self,
        book: DonorBook,
        publish: Callable[[DonorEvent], None],
        *,
        listeners: Listeners | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._book = book
        self._publish = publish
        self._listeners = listeners or Listeners()
        self._clock_ns = clock_ns
        self._last_stamp = 0
        self._generation = 0
        self._known: dict[DonorKey, _Known] = {}
        self._gone: OrderedDict[DonorKey, int] = OrderedDict()
        self._purged: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._known)

    @property
    def generation(self) -> int:
        return self._generation

    # What this replica does.

    def register(
        self, namespace: Namespace, donor_id: str, token_ids: TokenIds, worker: WorkerRank, finding: Finding | None
    ) -> bool:
        """A worker served this prompt. Whether it is a new donor."""
        with self._lock:
            key = DonorKey(namespace.digest, donor_id)
            if key in self._known:
                return False
            stamp = self._next_stamp()
            change = DonorRegistered(namespace, donor_id, token_ids, self._generation)
            if not self._keep(change, stamp, worker, finding):
                return False
            self._publish(DonorEvent(stamp, *worker, change))
            return True

    def evict(self, key: DonorKey) -> None:
        """Its KV is nowhere any more, or another donor holds all of it."""
        with self._lock:
            if key in self._known:
                self._drop(key, stamp := self._next_stamp())
                self._publish(DonorEvent(stamp, *NOWHERE, DonorEvicted(key, self._generation)))

    def purge(self, tenant: str | None) -> int:
        """Forget all donors of a tenant, or of all, in every replica. How many there were here."""
        with self._lock:
            before = len(self._known)
            self._say(DonorsPurged(tenant, self._generation))
            return before - len(self._known)

    def reset(self) -> int:
        """A new generation: donors of all earlier ones are void. Its number."""
        with self._lock:
            self._say(GenerationReset(self._generation + 1))
            return self._generation

    # What the others did.

    def apply(self, event: DonorEvent) -> bool:
        """Whether it changed anything here."""
        with self._lock:
            self._last_stamp = max(self._last_stamp, event.event_id)
            change = event.change
            if change.generation > self._generation:
                self._begin(change.generation)
            if isinstance(change, DonorsPurged):
                return self._forget_older(change.tenant, event.event_id)
            if isinstance(change, GenerationReset) or change.generation < self._generation:
                return False
            if isinstance(change, DonorEvicted):
                return self._apply_eviction(change.key, event.event_id)
            return self._apply_registration(change, event)

    def snapshot(self) -> Iterator[DonorEvent]:
        """All that a replica which has just started needs. Each event stands for itself."""
        with self._lock:
            generation, known, purged = self._generation, list(self._known.items()), list(self._purged.items())
            gone = list(self._gone.items())
        yield DonorEvent(0, *NOWHERE, GenerationReset(generation))
        for tenant, stamp in purged:
            yield DonorEvent(stamp, *NOWHERE, DonorsPurged(tenant or None, generation))
        for key, stamp in gone:
            yield DonorEvent(stamp, *NOWHERE, DonorEvicted(key, generation))
        for key, donor in known:
            tokens = self._book.tokens(donor.namespace, key.donor_id)
            if tokens is not None:
                change = DonorRegistered(donor.namespace, key.donor_id, tokens, generation)
                yield DonorEvent(donor.stamp, *donor.worker, change)

    def age_s(self, key: DonorKey) -> float | None:
        """Seconds since this replica came to know it; None: it does not."""
        with self._lock:
            donor = self._known.get(key)
            return None if donor is None else time.monotonic() - donor.since

    def known(self) -> frozenset[DonorKey]:
        with self._lock:
            return frozenset(self._known)

    # Called with the lock held.

    def _next_stamp(self) -> int:
        """Larger than every stamp made or seen here, and close to the time of day."""
        self._last_stamp = max(self._last_stamp + 1, self._clock_ns())
        return self._last_stamp

    def _say(self, change: Change) -> None:
        event = DonorEvent(self._next_stamp(), *NOWHERE, change)
        self.apply(event)
        self._publish(event)

    def _apply_registration(self, change: DonorRegistered, event: DonorEvent) -> bool:
        key, stamp = change.key, event.event_id
        void = max(self._purged.get(ALL, 0), self._purged.get(change.namespace.salt_digest, 0), self._gone.get(key, 0))
        if stamp <= void:
            return False
        worker = WorkerRank(event.worker_id, event.dp_rank)
        donor = self._known.get(key)
        if donor is None:
            return self._keep(change, stamp, worker, None)
        if stamp > donor.stamp:
            donor.stamp, donor.worker = stamp, worker
        return False

    def _apply_eviction(self, key: DonorKey, stamp: int) -> bool:
        donor = self._known.get(key)
        if donor is not None and stamp < donor.stamp:
            return False
        self._drop(key, max(stamp, self._gone.get(key, 0)))
        return donor is not None

    def _keep(self, change: DonorRegistered, stamp: int, worker: WorkerRank, finding: Finding | None) -> bool:
        added = self._book.add(change.namespace, change.donor_id, change.token_ids, finding)
        for key in added.evicted:
            self._drop(key, gone := self._next_stamp())
            self._publish(DonorEvent(gone, *NOWHERE, DonorEvicted(key, self._generation)))
        if added.kept:
            self._gone.pop(change.key, None)
            self._known[change.key] = _Known(change.namespace, stamp, worker, time.monotonic())
            self._listeners.came(change.namespace, change.donor_id, change.token_ids)
        return added.kept

    def _drop(self, key: DonorKey, stamp: int) -> None:
        self._book.forget(key)
        donor = self._known.pop(key, None)
        self._gone[key] = stamp
        self._gone.move_to_end(key)
        while len(self._gone) > TOMBSTONES:
            self._gone.popitem(last=False)
        if donor is not None:
            self._listeners.left(donor.namespace, key.donor_id)

    def _forget_older(self, tenant: str | None, stamp: int) -> bool:
        name = tenant or ALL
        if stamp <= self._purged.get(name, 0):
            return False
        self._purged[name] = stamp
        self._purged.move_to_end(name)
        while len(self._purged) > PURGES:
            self._purged.popitem(last=False)
        gone = [
            key
            for key, donor in self._known.items()
            if donor.stamp <= stamp and (tenant is None or key.namespace_digest.startswith(tenant))
        ]
        for key in gone:
            self._drop(key, stamp)
        return True

    def _begin(self, generation: int) -> None:
        for key in list(self._known):
            self._drop(key, 0)
        self._gone.clear()
        self._generation = generation
