"""The donor store: keeps finished requests' KV in tiers and brings it back."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType

import numpy as np
import numpy.typing as npt
import torch

from semblend_core.contract import Namespace, TenantReport
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.store.budget import Copy
from semblend_core.kv.store.capturing import Capturing, Told
from semblend_core.kv.store.directory import Sync
from semblend_core.kv.store.disk_tier import DiskReader, DiskTier
from semblend_core.kv.store.handles import StoredKv, Transfer, pinned_copy
from semblend_core.kv.store.holdings import Holdings
from semblend_core.kv.store.kv_spec import TokenRange
from semblend_core.kv.store.lane import Job, Lane
from semblend_core.kv.store.lmcache_tier import LmcacheTier
from semblend_core.kv.store.loading import Loader, checked_ranges
from semblend_core.kv.store.memory_tiers import HostTier
from semblend_core.kv.store.opening import device_of, open_tiers
from semblend_core.kv.store.options import StoreOptions
from semblend_core.kv.store.placement import Placement
from semblend_core.kv.store.purging import Purging
from semblend_core.kv.store.recovery import Recovery, SharedRecovery
from semblend_core.kv.store.stats import StoreStats
from semblend_core.kv.store.vocabulary import DonorKey, Gone, Miss, PutResult, RecoveredDonor, StoreDecline, Tier

LONGEST_OPENING_S = 120.0
MOST_BETWEEN_LOOKS_S = 30.0
"""Between two looks for donors that are too old."""


class DonorStore:
    """Threads: every method from any thread.

    All but ``prepare``, ``recover``, ``purge``, ``flush`` and ``close`` are made for the scheduler's thread: they start
    work and never wait for a copy, a write or a read. Those five wait.
    Faults of memory, disk or device end in a counted reason, never in an exception.
    """

    def __init__(
        self,
        options: StoreOptions,
        *,
        device: torch.device | str | None = None,
        on_gone: Callable[[DonorKey, Gone], None] | None = None,
        sync: Sync = os.fsync,
    ) -> None:
        """``device`` is where the engine computes; by default the current CUDA device, or the CPU without one.

        ``on_gone`` is called, on a background thread, for every visible donor that the store loses by itself: its
        registration must go too. It comes at once, so mostly in the middle of making room, while the tier takes
        nothing else in: it should be quick, must not call ``recover``, ``flush`` or ``close``, and must take no lock
        that another thread holds while calling these. The other methods are free to it.
        ``sync`` makes a file durable, for file systems with a way of their own.
        StoreDirectoryError when ``disk_path`` cannot be written or is in use.
        """
        self.options = options
        self.device = device_of(device)
        self._holdings = Holdings(options)
        self._tiers = open_tiers(options, self.device, sync)
        host = self._tiers.get(Tier.HOST)
        grow = host.grow if isinstance(host, HostTier) else None
        self._lanes = {
            tier: Lane(tier, options.queue_depth, options.queue_bytes, grow if tier is Tier.HOST else None)
            for tier in options.tiers
        }
        self._load_lane = Lane("load", options.queue_depth, options.queue_bytes)
        disk = self._tiers.get(Tier.DISK)
        self._disk = disk if isinstance(disk, DiskTier) else None
        lmcache = self._tiers.get(Tier.LMCACHE)
        self._lmcache = lmcache if isinstance(lmcache, LmcacheTier) else None
        self._readers: list[DiskReader] = []
        self._placement = Placement(
            self._holdings, self._tiers, self._lanes, self._reader(), on_gone, lambda: self._loader.reap(), options
        )
        self._loader = Loader(self._holdings, self._placement, self._load_lane, self._reader(), self.device)
        self._recovery: Recovery | None = None
        if self._disk is not None:
            self._recovery = Recovery(self._holdings, self._disk, options)
            self._disk.prepare = self._recovery.ensure
        self._capturing = Capturing(self._holdings, self._placement, self._tiers, self._lanes, self.device)
        self._purging = Purging(
            self._holdings, self._placement, self._lanes, self._disk, self._recovery, self._readers, self._lmcache
        )
        self._shared = None if self._lmcache is None else SharedRecovery(self._holdings, self._lmcache, options)

        self._ending = threading.Event()
        if options.max_age_s is not None:
            wait_s = min(options.max_age_s / 4, MOST_BETWEEN_LOOKS_S)
            threading.Thread(target=self._expire, args=(wait_s,), name="semblend-store-ages", daemon=True).start()

    def put(
        self,
        namespace: Namespace,
        donor_id: str,
        kv: DonorKv,
        *,
        token_ids: Sequence[int] | npt.NDArray[np.integer] | None = None,
        on_durable: Callable[[str], None] | None = None,
        on_declined: Callable[[str, StoreDecline], None] | None = None,
        tier: Tier | None = None,
        give: bool = False,
        saved_ms: float = 0.0,
    ) -> PutResult:
        """Begin to keep a donor in the fastest tier that can hold it, from ``tier`` downwards.

        The tensors are the store's to read until the donor is durable: the caller may drop them, but never writes to
        them again. ``on_durable`` is called with the donor id, on a background thread, once the donor is visible;
        ``on_declined``, likewise, when an accepted donor could not be kept after all.
        ``give``: they are the store's for good, nobody else writes to them, and they are no views of more: then the
        device tier keeps them as they are.
        ``saved_ms``: what it takes to compute it, for policies that weigh what its loss would cost; 0: not known.
        A donor that is already held, or on its way, is refused and not replaced: its readers rely on it.
        """
        told = Told(on_durable, on_declined)
        return self._capturing.begin(namespace, donor_id, kv, token_ids, told, first=tier, give=give, saved_ms=saved_ms)

    def prepare(self, token_bytes: int) -> None:
        """Donors will take so many bytes a token: what takes long to open for the first is opened now.

        Waited for: LMCache may pin memory as it opens, which must not meet an engine that captures CUDA graphs.
        """
        if self._lmcache is not None:
            lane = self._lanes[Tier.LMCACHE]
            lane.submit(Job(partial(self._lmcache.open_for, token_bytes)), always=True)
            lane.flush(LONGEST_OPENING_S)

    def has_room_for(self, nbytes: int) -> bool:
        """Whether a donor of this size would be taken now: a tier can hold it, and not too many wait before it.

        Ask before copying a donor out of the engine. ``put`` may still decline.
        """
        first = next((tier for tier in self._tiers if nbytes <= self.options.limit_of(tier)), None)
        return first is not None and self._lanes[first].has_room_for(nbytes)

    def contains(self, namespace: Namespace, donor_id: str) -> bool:
        """Whether ``acquire`` would find it now."""
        return self.tier_of(namespace, donor_id) is not None

    def tier_of(self, namespace: Namespace, donor_id: str) -> Tier | None:
        """The fastest tier that holds the donor; None when it is not visible."""
        return self._holdings.tier_of(DonorKey(namespace.digest, donor_id))

    def acquire(self, namespace: Namespace, donor_id: str) -> StoredKv | None:
        """Pin a donor and count its use; None, with a counted reason, when it is not visible."""
        copy = self._holdings.pin(DonorKey(namespace.digest, donor_id))
        return None if isinstance(copy, Miss) else StoredKv(copy, self._release)

    def load(
        self,
        handle: StoredKv,
        ranges: Sequence[TokenRange] | None = None,
        device: torch.device | str | None = None,
    ) -> Transfer:
        """Begin to bring ``ranges`` of a donor's tokens, or all of it, to ``device`` (default: the store's).

        In the device tier the parts are views of the donor itself: read them only, and while the handle is held.
        ValueError for a released handle or a range outside the donor.
        """
        copy = pinned_copy(handle)
        self._loader.reap()
        target = self.device if device is None else device_of(device)
        return self._loader.load(copy, checked_ranges(ranges, handle.spec), target)

    def forget(self, namespace: Namespace, donor_id: str) -> bool:
        """Make a donor invisible at once, also one on its way; False if it is not known.

        Its bytes are freed when nobody reads them, files in the background: a donor whose process ends before its
        file is deleted is found again by ``recover``.
        """
        known, copies = self._holdings.forget(DonorKey(namespace.digest, donor_id))
        for copy in copies:
            self._placement.free(copy)
        return known

    def note_copied(self, namespace: Namespace, donor_id: str, tokens: int) -> None:
        """A newer donor holds the first ``tokens`` of this one too: it would be missed for the rest alone."""
        self._holdings.note_copied(DonorKey(namespace.digest, donor_id), tokens)

    def forget_tenant(self, tenant: str) -> TenantReport:
        """Make every donor of a tenant invisible at once, also those on their way: what there was.

        Bytes and files go in the background, with what an earlier process left. ``purge`` waits for that.
        """
        return self._purging.begin(tenant)

    def purge(self, tenant: str, timeout: float = 30.0) -> TenantReport:
        """``forget_tenant``, and wait until host memory, disk and LMCache hold nothing of it: what there was.

        Damaged files that were set aside are deleted, whosever they were. Memory of the device is given back to its
        allocator and not overwritten, since a load under way may still read it. TimeoutError after ``timeout`` seconds,
        StoreDirectoryError where files cannot be deleted, or LMCache's server does not answer.
        """
        return self._purging.purge(tenant, timeout)

    def held_by(self, tenant: str) -> TenantReport:
        """What the store holds of a tenant, or will soon."""
        return self._holdings.report(tenant)

    def recover(self) -> list[RecoveredDonor]:
        """Make the donors that an earlier process left on disk, or listed of LMCache's, visible, and name them.

        At start-up; it reads files.

        Without this call the first write to disk does it. Damaged files are set aside and counted.
        """
        found = [] if self._recovery is None else self._recovery.recover()
        return found if self._shared is None else [*found, *self._shared.recover()]

    def stats(self) -> StoreStats:
        self._loader.reap()
        return self._holdings.stats()

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until nothing is on its way. False after ``timeout`` seconds. For tests and shutdown."""
        deadline = time.monotonic() + timeout
        # From the fastest down: a tier's work may leave some for the next. A load that ends may leave some for all.
        if not self._flush_lanes([*self._lanes.values(), self._load_lane], deadline):
            return False
        self._loader.wait_for_flights()
        return self._flush_lanes(self._lanes.values(), deadline)

    def wait_briefly(self, seconds: float) -> bool:
        """Let copies under way go on, no longer than this. Whether none is left."""
        return self._flush_lanes(self._lanes.values(), time.monotonic() + seconds)

    @staticmethod
    def _flush_lanes(lanes: Iterable[Lane], deadline: float) -> bool:
        return all(lane.flush(max(0.0, deadline - time.monotonic())) for lane in lanes)

    def close(self, timeout: float = 30.0) -> bool:
        """Refuse everything from now on, drop what waits, and let others use the folder; ``flush`` before to keep it.

        False when a write under way did not end within ``timeout`` seconds: the folder then stays locked, and another
        call may try again. Idempotent. What is on disk stays; what is in memory goes with the last handle.
        """
        deadline = time.monotonic() + timeout
        self._ending.set()
        with self._holdings.lock:
            self._holdings.closed = True
        lanes = [*self._lanes.values(), self._load_lane]
        for lane in lanes:
            lane.stop()
        if not all(lane.join(max(0.0, deadline - time.monotonic())) for lane in lanes):
            return False
        if self._disk is not None:
            self._disk.directory.close()
        if self._lmcache is not None:
            self._lmcache.close()
        return True

    def check_integrity(self) -> None:
        """Raise AssertionError if internal state is inconsistent. For tests."""
        self._holdings.check_integrity()
        host = self._tiers.get(Tier.HOST)
        if isinstance(host, HostTier):
            host.pool.check_integrity()

    def __enter__(self) -> DonorStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _expire(self, wait_s: float) -> None:
        while not self._ending.wait(wait_s):
            self._placement.expire(self._holdings.too_old())

    def _release(self, copy: Copy) -> None:
        self._placement.unpin(copy)
        if not self.options.promote:
            return
        tiers = list(self._tiers)
        faster = [tier for tier in tiers[: tiers.index(copy.tier)] if self._placement.fits_ever(tier, copy.entry)]
        if faster and self._holdings.may_promote(copy, faster[-1]):
            self._lanes[faster[-1]].submit(Job(partial(self._placement.promote, copy, faster[-1])))

    def _reader(self) -> DiskReader | None:
        if self._disk is None:
            return None
        self._readers.append(DiskReader(self._disk.directory, self.device))
        return self._readers[-1]
