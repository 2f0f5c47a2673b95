"""What an earlier process left on disk, and what others keep in LMCache."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from itertools import accumulate

from semblend_core.kv.store.budget import Entry
from semblend_core.kv.store.disk_tier import DiskStorage, DiskTier
from semblend_core.kv.store.holdings import Holdings
from semblend_core.kv.store.lmcache_tier import LmcacheTier
from semblend_core.kv.store.options import StoreOptions
from semblend_core.kv.store.stats import Tally
from semblend_core.kv.store.vocabulary import (
    CorruptDonorError,
    DonorKey,
    FormerDonorError,
    Quarantine,
    RecoveredDonor,
    StoreDecline,
    Tier,
)

logger = logging.getLogger(__name__)


def _named(entries: Sequence[Entry]) -> list[RecoveredDonor]:
    return [
        RecoveredDonor(entry.key.namespace, entry.key.donor_id, entry.spec.tokens, entry.token_ids, entry.born)
        for entry in entries
    ]


class SharedRecovery:
    """What LMCache holds, by the list that its users keep. It is others' too: what finds no place here stays there."""

    def __init__(self, holdings: Holdings, lmcache: LmcacheTier, options: StoreOptions) -> None:
        self._holdings, self._lmcache, self._options = holdings, lmcache, options

    def recover(self) -> list[RecoveredDonor]:
        """The donors in LMCache, the next victim first."""
        try:
            found = list(self._lmcache.scan())
        except OSError as error:
            logger.warning("SemBlend could not read its list of donors in LMCache: %s", error)
            return []
        for storage in reversed(found):  # The newest first: a budget that is too small costs the oldest.
            metadata = storage.metadata
            if metadata.born < self._holdings.too_old():
                continue
            if not self._options.may_lie_in(Tier.LMCACHE, metadata.key.namespace):
                continue
            entry = Entry(metadata.key, metadata.spec, metadata.token_ids, metadata.born)
            charge = self._lmcache.charge(metadata.key, metadata.spec, metadata.token_ids)
            self._holdings.restore(entry, Tier.LMCACHE, storage, charge)
        return _named(self._holdings.entries_in(Tier.LMCACHE))


class Recovery:
    """Looks once; before the disk tier takes anything in, or its budget would not know what lies there."""

    def __init__(self, holdings: Holdings, disk: DiskTier, options: StoreOptions) -> None:
        self._holdings, self._options = holdings, options
        self._disk = disk
        self._done = False

    def ensure(self) -> StoreDecline | None:
        """Look, unless that was done. DISK_ERROR while the folder cannot be read: the next call tries again."""
        with self._disk.moving:
            if self._done or self._holdings.closed:  # Closed, the folder may be another's.
                return None
            try:
                scanned = list(self._disk.scan())
            except OSError as error:
                logger.warning("SemBlend could not look for donors in %s: %s", self._disk.directory.root, error)
                return StoreDecline.DISK_ERROR
            self._done = True
            self._take_stock(scanned)
            return None

    def recover(self) -> list[RecoveredDonor]:
        """The donors on disk, the next victim first."""
        self.ensure()
        return _named(self._holdings.entries_in(Tier.DISK))

    def _take_stock(self, scanned: Sequence[DiskStorage | CorruptDonorError]) -> None:
        found: dict[DonorKey, DiskStorage] = {}
        former = sum(isinstance(each, FormerDonorError) for each in scanned)
        if former:
            logger.warning("SemBlend removed %d donors of an earlier version: nothing tells their weights", former)
        for each in scanned:
            if isinstance(each, FormerDonorError):
                continue
            if isinstance(each, CorruptDonorError):
                reason = each.reason
                self._holdings.count(partial(_count, reason=reason))
                logger.warning("SemBlend set a damaged donor file aside (%s): %s", reason, each)
                continue
            older = found.pop(each.metadata.key, None)
            if older is not None:  # Forgotten and stored anew, and the process ended before the deletion.
                self._disk.discard(older)
            if self._may_stay(each):
                found[each.metadata.key] = each
            else:
                self._disk.discard(each)
        # The newest first, so that a budget that has shrunk costs the oldest; then listed the oldest first.
        newest_first = list(reversed(found.values()))
        limit = self._holdings.budgets[Tier.DISK].limit
        kept = sum(total <= limit for total in accumulate(map(self._charge, newest_first)))
        for storage in reversed(newest_first[:kept]):
            metadata = storage.metadata
            entry = Entry(metadata.key, metadata.spec, metadata.token_ids, metadata.born)
            if not self._holdings.restore(entry, Tier.DISK, storage, self._charge(storage)):
                self._disk.discard(storage)
        for storage in newest_first[kept:]:
            self._disk.discard(storage)

    def _may_stay(self, storage: DiskStorage) -> bool:
        """Not where the donor is too old by now, or its tenant may no longer lie here."""
        metadata = storage.metadata
        is_young = metadata.born >= self._holdings.too_old()
        return is_young and self._options.may_lie_in(Tier.DISK, metadata.key.namespace)

    def _charge(self, storage: DiskStorage) -> int:
        metadata = storage.metadata
        return self._disk.charge(metadata.key, metadata.spec, metadata.token_ids)


def _count(tally: Tally, reason: Quarantine) -> None:
    tally.quarantined[reason] += 1
