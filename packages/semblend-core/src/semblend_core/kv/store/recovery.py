"""What an earlier process left on disk."""

from __future__ import annotations

import logging
from functools import partial

from semblend_core.kv.store.budget import Entry
from semblend_core.kv.store.disk_tier import DiskStorage, DiskTier
from semblend_core.kv.store.holdings import Holdings
from semblend_core.kv.store.stats import Tally
from semblend_core.kv.store.vocabulary import CorruptDonorError, DonorKey, Quarantine, RecoveredDonor, Tier

logger = logging.getLogger(__name__)


class Recovery:
    """Looks once; before the disk tier takes anything in, or its budget would not know what lies there."""

    def __init__(self, holdings: Holdings, disk: DiskTier) -> None:
        self._holdings = holdings
        self._disk = disk
        self._done = False

    def ensure(self) -> None:
        with self._disk.moving:
            if self._done or self._holdings.closed:  # Closed, the folder may be another's.
                return
            self._done = True
            try:
                self._scan()
            except OSError as error:
                logger.warning("SemBlend could not look for donors in %s: %s", self._disk.directory.root, error)

    def recover(self) -> list[RecoveredDonor]:
        """The donors on disk, the next victim first."""
        self.ensure()
        return [
            RecoveredDonor(entry.key.namespace, entry.key.donor_id, entry.spec.tokens, entry.token_ids)
            for entry in self._holdings.entries_in(Tier.DISK)
        ]

    def _scan(self) -> None:
        found: dict[DonorKey, DiskStorage] = {}
        for each in self._disk.scan():
            if isinstance(each, CorruptDonorError):
                reason = each.reason
                self._holdings.count(partial(_count, reason=reason))
                logger.warning("SemBlend set a damaged donor file aside (%s): %s", reason, each)
                continue
            older = found.pop(each.metadata.key, None)
            if older is not None:  # Forgotten and stored anew, and the process ended before the deletion.
                self._disk.discard(older)
            found[each.metadata.key] = each
        # The newest first, so that a budget that has shrunk costs the oldest; then listed the oldest first.
        kept: list[DiskStorage] = []
        room = self._holdings.budgets[Tier.DISK].limit
        for storage in reversed(found.values()):
            room -= self._charge(storage)
            if room < 0:
                break
            kept.append(storage)
        for storage in reversed(kept):
            metadata = storage.metadata
            entry = Entry(metadata.key, metadata.spec, metadata.token_ids)
            if not self._holdings.restore(entry, Tier.DISK, storage, self._charge(storage)):
                self._disk.discard(storage)
        for storage in found.values():
            if storage not in kept:
                self._disk.discard(storage)

    def _charge(self, storage: DiskStorage) -> int:
        metadata = storage.metadata
        return self._disk.charge(metadata.key, metadata.spec, metadata.token_ids)


def _count(tally: Tally, reason: Quarantine) -> None:
    tally.quarantined[reason] += 1
