"""Bringing donors into tiers and making room for them. Background threads only, except
``free``, ``unpin`` and ``fits_ever``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.store.budget import Copy, Entry
from semblend_core.kv.store.disk_tier import DiskReader, DiskStorage
from semblend_core.kv.store.holdings import Holdings
from semblend_core.kv.store.kv_spec import LayerTensors, TokenRange, layers_of
from semblend_core.kv.store.lane import Job, Lane
from semblend_core.kv.store.lmcache_tier import LmcacheStorage, LmcacheTier
from semblend_core.kv.store.memory_tiers import HostStorage
from semblend_core.kv.store.options import StoreOptions
from semblend_core.kv.store.side_stream import SideStream
from semblend_core.kv.store.stats import Tally
from semblend_core.kv.store.tier import FragmentedError, Source, StorageTier, fill_from, out_of_memory
from semblend_core.kv.store.vocabulary import (
    CorruptDonorError,
    DonorKey,
    Gone,
    LostDonorError,
    Quarantine,
    StoreDecline,
    StoreFaultError,
    Tier,
)

logger = logging.getLogger(__name__)


Read: TypeAlias = Callable[[Sequence[TokenRange], Sequence[LayerTensors], SideStream], None]
"""Brings ranges of a donor, one behind the other, into layers."""


class Placement:
    def __init__(
        self,
        holdings: Holdings,
        tiers: dict[Tier, StorageTier],
        lanes: dict[Tier, Lane],
        promotion_reader: DiskReader | None,
        on_gone: Callable[[DonorKey, Gone], None] | None,
        reap: Callable[[], None],
        options: StoreOptions,
    ) -> None:
        """``reap`` gives up the pins of loads that have landed."""
        self._holdings = holdings
        self._tiers = tiers
        self._lanes = lanes
        self._promotion_reader = promotion_reader
        self._on_gone = on_gone
        self._reap = reap
        self._options = options

    def admit(self, tier: Tier, entry: Entry, source: Source) -> StoreDecline | None:
        """Bring a donor into ``tier`` and list it there; why not, otherwise. Errors end here, as reasons.

        Except CorruptDonorError and LostDonorError: they are the source's.
        """
        stage = self._tiers[tier]
        try:
            charge = stage.charge(entry.key, entry.spec, entry.token_ids)
            with stage.moving:
                reason = (
                    stage.prepare() or self._make_room(tier, charge) or self._bring_in(stage, entry, source, charge)
                )
        except (CorruptDonorError, LostDonorError):
            raise
        except StoreFaultError as fault:
            reason = fault.reason
            logger.warning("SemBlend could not keep a donor in its %s tier: %s", tier, fault)
        except Exception as error:
            fault_of_memory = out_of_memory(error)
            reason = StoreDecline.COPY_FAILED if fault_of_memory is None else fault_of_memory.reason
            logger.exception("SemBlend could not keep a donor in its %s tier", tier)
        if reason is not None:
            self._holdings.count(lambda tally: tally.tier_declines[tier].update([reason]))
        return reason

    def promote(self, copy: Copy, tier: Tier) -> None:
        """Copy a donor up after its use. The slower copy stays: it is the way back."""
        if self._holdings.may_promote(copy, tier) and self._holdings.pin_again(copy):
            try:
                if self.admit(tier, copy.entry, self.source_of(copy)) is None:
                    self._holdings.count(lambda tally: tally.promotions.update([tier]))
            except CorruptDonorError as error:
                self.lose(copy, error.reason)
            except LostDonorError:
                self.vanished(copy)
            finally:
                self.unpin(copy)

    def unpin(self, copy: Copy) -> None:
        if self._holdings.unpin(copy):
            self.free(copy)

    def free(self, copy: Copy) -> None:
        """Free the bytes of a copy that is unlisted and unpinned. Never waits: long work goes to the background."""
        discard = partial(self._discard, copy)
        takes_long = copy.tier in (Tier.DISK, Tier.LMCACHE) or copy.scrub
        # A stopped lane deletes no more; by then the store is closed and nobody waits for this thread.
        if not takes_long or not self._lanes[copy.tier].submit(Job(discard, dropped=discard), always=True):
            discard()

    def lose(self, copy: Copy, reason: Quarantine) -> None:
        """A damaged donor: nobody finds it any more, and it is set aside."""
        news, gone = self._holdings.lose(copy, reason)
        if not news:
            return  # Another reader was first, or it is to be deleted anyway.
        self._tiers[copy.tier].set_aside(copy.storage, reason)
        if gone:
            self._tell_gone(copy.entry.key, Gone.CORRUPT)

    def vanished(self, copy: Copy) -> None:
        """Whoever held its bytes has let them go."""
        if self._holdings.vanished(copy):
            self._tell_gone(copy.entry.key, Gone.EVICTED)

    def expire(self, born_before: int) -> None:
        """Drop the donors that are too old, and tell their owner."""
        for key, copies in self._holdings.expire(born_before):
            for copy in copies:
                self.free(copy)
            self._tell_gone(key, Gone.EXPIRED)

    def source_of(self, copy: Copy) -> Source:
        """A copy's bytes, for as long as the caller pins it."""
        entry, storage = copy.entry, copy.storage
        if isinstance(storage, DiskStorage | LmcacheStorage):
            whole = [(0, entry.spec.tokens)]
            read = self.reads(storage, self._promotion_reader)
            return Source(
                entry.key,
                entry.spec,
                entry.token_ids,
                lambda target, side: read(whole, target, side),
                None,
                born=entry.born,
            )
        assert isinstance(storage, DonorKv | HostStorage)
        layers = layers_of(storage) if isinstance(storage, DonorKv) else storage.layers
        return Source(entry.key, entry.spec, entry.token_ids, fill_from(layers), layers, born=entry.born)

    def reads(self, storage: DiskStorage | LmcacheStorage, from_disk: DiskReader | None) -> Read:
        """How to read what is not in memory."""
        if isinstance(storage, DiskStorage):
            assert from_disk is not None
            return partial(from_disk.read, storage)
        tier = self._tiers[Tier.LMCACHE]
        assert isinstance(tier, LmcacheTier)
        return partial(tier.read, storage)

    def tell(self, call: Callable[[], None]) -> None:
        """Call out to the owner, never under the short lock; errors of a callback are counted and end there."""
        try:
            call()
        except Exception:
            logger.exception("a callback of the donor store's owner failed")
            self._holdings.count(_count_failed_callback)

    def _make_room(self, tier: Tier, charge: int) -> StoreDecline | None:
        while True:
            self._reap()
            victim = self._holdings.choose_victim(tier, charge)
            if not isinstance(victim, Copy):
                return victim
            self._retire(victim)

    def _retire(self, copy: Copy) -> None:
        """Evict a copy that ``choose_victim`` pinned, after saving its bytes in a slower tier where there is one."""
        saved = self._holdings.holds_below(copy)
        below = list(self._tiers)[list(self._tiers).index(copy.tier) + 1 :]
        for tier in [] if saved else below:
            if self.fits_ever(tier, copy.entry) and self.admit(tier, copy.entry, self.source_of(copy)) is None:
                saved = True
                break
        free_now, gone = self._holdings.evict(copy, demoted=saved)
        if free_now:
            self._discard(copy)
        if gone:
            self._tell_gone(copy.entry.key, Gone.EVICTED)

    def fits_ever(self, tier: Tier, entry: Entry) -> bool:
        """Whether an empty tier could hold the donor, and may. Any thread."""
        if not self._options.may_lie_in(tier, entry.key.namespace):
            return False
        stage, budget = self._tiers[tier], self._holdings.budgets[tier]
        return stage.holds(entry.spec) and stage.charge(entry.key, entry.spec, entry.token_ids) <= budget.limit

    def _bring_in(self, stage: StorageTier, entry: Entry, source: Source, charge: int) -> StoreDecline | None:
        """Write and list; the charge is reserved, and given back if it comes to nothing."""
        copy: Copy | None = None
        try:
            storage = self._write(stage, source)
            copy = self._holdings.commit(entry, stage.tier, storage, charge)
            if copy is None:
                stage.discard(storage, scrub=True)
        finally:
            if copy is None:
                self._holdings.release(stage.tier, charge)
        return StoreDecline.FORGOTTEN if copy is None else None

    def _write(self, stage: StorageTier, source: Source) -> object:
        while True:
            try:
                return stage.write(source)
            except FragmentedError:
                victim = self._holdings.any_victim(stage.tier)
                if victim is None:
                    raise StoreFaultError(StoreDecline.NO_ROOM, "the free memory is in small pieces") from None
                self._retire(victim)

    def _discard(self, copy: Copy) -> None:
        self._tiers[copy.tier].discard(copy.storage, scrub=copy.scrub)
        self._holdings.release(copy.tier, copy.charge)

    def _tell_gone(self, key: DonorKey, reason: Gone) -> None:
        if self._on_gone is not None:
            on_gone = self._on_gone
            self.tell(lambda: on_gone(key, reason))


def _count_failed_callback(tally: Tally) -> None:
    tally.failed_callbacks += 1
