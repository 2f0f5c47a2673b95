"""All that a tenant has in the store goes: at once from sight, then from every tier."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial

from semblend_core.contract import TenantReport
from semblend_core.kv.store.disk_tier import DiskReader, DiskTier
from semblend_core.kv.store.holdings import Holdings
from semblend_core.kv.store.lane import Job, Lane
from semblend_core.kv.store.lmcache_tier import LmcacheTier
from semblend_core.kv.store.options import StoreDirectoryError
from semblend_core.kv.store.placement import Placement
from semblend_core.kv.store.recovery import Recovery
from semblend_core.kv.store.vocabulary import Tier


class Purging:
    """``disk``, with its ``recovery`` and all who read from it, and ``lmcache``: None where there is none."""

    def __init__(
        self,
        holdings: Holdings,
        placement: Placement,
        lanes: Mapping[Tier, Lane],
        disk: DiskTier | None,
        recovery: Recovery | None,
        readers: Sequence[DiskReader],
        lmcache: LmcacheTier | None,
    ) -> None:
        self._holdings, self._placement, self._lanes = holdings, placement, lanes
        self._disk, self._recovery, self._readers, self._lmcache = disk, recovery, readers, lmcache

    def begin(self, tenant: str) -> TenantReport:
        """What there was is invisible now. Bytes and files go in the background."""
        found = self._drop(tenant)
        if self._disk is not None:
            self._lanes[Tier.DISK].submit(Job(partial(self._purge_disk, tenant)), always=True)
        if self._lmcache is not None:
            self._lanes[Tier.LMCACHE].submit(Job(partial(self._lmcache.purge, tenant)), always=True)
        return found

    def purge(self, tenant: str, timeout: float) -> TenantReport:
        """The same, and wait until it is gone everywhere."""
        found = self._drop(tenant) + self._purge_disk(tenant)
        passed = [threading.Event() for _ in self._lanes]
        for lane, event in zip(self._lanes.values(), passed, strict=True):
            if not lane.submit(Job(event.set, dropped=event.set), always=True):
                event.set()  # It has stopped, and so holds nothing.
        deadline = time.monotonic() + timeout
        if not all(event.wait(max(0.0, deadline - time.monotonic())) for event in passed):
            raise TimeoutError(f"the donor store did not come to the end of a purge within {timeout:g} s")
        if self._disk is not None:
            self._disk.directory.check_deleted()
        if self._lmcache is not None:
            found += self._lmcache.purge(tenant)
            self._lmcache.check_deleted()
        return found

    def _drop(self, tenant: str) -> TenantReport:
        found, copies = self._holdings.forget_tenant(tenant)
        for copy in copies:
            self._placement.free(copy)
        return found

    def _purge_disk(self, tenant: str) -> TenantReport:
        """What an earlier process left is found first."""
        if self._disk is None or self._recovery is None:
            return TenantReport()
        unread = self._recovery.ensure()
        found = self._drop(tenant)
        for reader in self._readers:
            reader.scrub()
        self._disk.directory.empty_quarantine()
        if unread is not None:
            raise StoreDirectoryError(f"what lies in {str(self._disk.directory.root)!r} cannot be read: purge again")
        return found
