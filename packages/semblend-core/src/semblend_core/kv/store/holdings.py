"""Who is held where, who is pinned, and what each tier has left: all of it under one short lock.

No method copies, writes, waits or calls out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import cast

from semblend_core.contract import TenantReport, tenant_of
from semblend_core.kv.store.budget import Copy, Entry, TierBudget
from semblend_core.kv.store.options import StoreOptions
from semblend_core.kv.store.stats import StoreStats, Tally
from semblend_core.kv.store.vocabulary import DonorKey, Gone, Miss, Quarantine, StoreDecline, Tier


class Holdings:
    def __init__(self, options: StoreOptions) -> None:
        self.budgets = {tier: TierBudget(options.limit_of(tier), options.eviction) for tier in options.tiers}
        self.tally = Tally()
        self.closed = False
        self._max_age_s = options.max_age_s
        self._entries: dict[DonorKey, Entry] = {}
        self._coming: dict[DonorKey, Entry] = {}
        """Accepted and not durable yet."""
        self.lock = threading.Lock()

    def announce(self, entry: Entry) -> StoreDecline | None:
        """Note that a donor is on its way, or say why it may not come."""
        with self.lock:
            if self.closed:
                return StoreDecline.CLOSED
            if entry.key in self._entries or entry.key in self._coming:
                return StoreDecline.DUPLICATE_DONOR
            self._coming[entry.key] = entry
            return None

    def decline(self, reason: StoreDecline) -> None:
        with self.lock:
            self.tally.declines[reason] += 1

    def withdraw(self, entry: Entry, reason: StoreDecline) -> None:
        """A donor on its way will not arrive. Counted here, unless it was forgotten meanwhile: that was counted."""
        with self.lock:
            if self._coming.get(entry.key) is entry:
                del self._coming[entry.key]
                self.tally.declines[reason] += 1

    def commit(self, entry: Entry, tier: Tier, storage: object, charge: int) -> Copy | None:
        """List bytes that are durable and paid for; None when the donor was forgotten meanwhile."""
        with self.lock:
            if self._coming.get(entry.key) is entry:
                del self._coming[entry.key]
                self._entries[entry.key] = entry
            elif self._entries.get(entry.key) is not entry or tier in entry.copies:
                return None
            copy = entry.copies[tier] = Copy(entry, tier, storage, charge)
            self.budgets[tier].add(copy)
            self.tally.stored[tier] += 1
            return copy

    def restore(self, entry: Entry, tier: Tier, storage: object, charge: int) -> bool:
        """List what a restart found. False where the same donor is already here, or its tier is full."""
        with self.lock:
            known = entry.key in self._entries or entry.key in self._coming
            if known or not self.budgets[tier].reserve(charge):
                return False
            self._entries[entry.key] = entry
            copy = entry.copies[tier] = Copy(entry, tier, storage, charge)
            self.budgets[tier].add(copy)
            return True

    def pin(self, key: DonorKey) -> Copy | Miss:
        """Pin the fastest copy and count its use."""
        with self.lock:
            entry = self._entries.get(key)
            if self.closed or entry is None or entry.born < self.too_old():
                known = Miss.NOT_DURABLE if key in self._coming else Miss.UNKNOWN
                miss = Miss.CLOSED if self.closed else known
                self.tally.misses[miss] += 1
                return miss
            copy = entry.fastest
            self.budgets[copy.tier].pin(copy)
            self.tally.hits[copy.tier] += 1
            now = time.monotonic()
            for tier in entry.copies:  # The slower copies are its way back: as recent as the fast one.
                self.budgets[tier].policy.touch(key, now)
            return copy

    def pin_again(self, copy: Copy) -> bool:
        """One pin more; a copy that is pinned already may be unlisted."""
        with self.lock:
            if self.closed or (not copy.listed and copy.pins == 0):
                return False
            self.budgets[copy.tier].pin(copy)
            return True

    def unpin(self, copy: Copy) -> bool:
        """True when the copy's bytes are to be freed now, by the caller."""
        with self.lock:
            self.budgets[copy.tier].unpin(copy)
            return not copy.listed and copy.pins == 0

    def choose_victim(self, tier: Tier, charge: int) -> Copy | StoreDecline | None:
        """Reserve ``charge`` and return None, or name a copy to evict first, pinned for its mover, or the refusal."""
        with self.lock:
            budget = self.budgets[tier]
            if budget.reserve(charge):
                return None
            copy = budget.victim(charge)
            return StoreDecline.NO_ROOM if copy is None else self._held(copy)

    def any_victim(self, tier: Tier) -> Copy | None:
        """A copy to evict though the budget has room, pinned for its mover."""
        with self.lock:
            copy = self.budgets[tier].victim(0)
            return None if copy is None else self._held(copy)

    def evict(self, copy: Copy, *, demoted: bool) -> tuple[bool, bool]:
        """Give up the mover's pin and, if nobody else pinned it, the copy: (free its bytes now, the donor is gone)."""
        with self.lock:
            self.budgets[copy.tier].unpin(copy)
            if copy.pins or not copy.listed:
                return not copy.pins, False
            self.tally.evictions[copy.tier] += 1
            self.tally.demotions[copy.tier] += demoted
            return True, self._unlist(copy, Gone.EVICTED)

    def lose(self, copy: Copy, reason: Quarantine) -> tuple[bool, bool]:
        """Unlist a copy whose bytes are damaged: (whether this is news, whether the donor is gone with it)."""
        with self.lock:
            if not copy.listed:
                return False, False
            self.tally.quarantined[reason] += 1
            return True, self._unlist(copy, Gone.CORRUPT)

    def vanished(self, copy: Copy) -> bool:
        """Unlist a copy whose bytes others have let go; nothing of it is left to free. Whether the donor is gone."""
        with self.lock:
            if not copy.listed:
                return False
            return self._unlist(copy, Gone.EVICTED)

    def forget(self, key: DonorKey) -> tuple[bool, list[Copy]]:
        """(whether it was known, the copies whose bytes are to be freed now)."""
        with self.lock:
            if self._coming.pop(key, None) is not None:
                self.tally.declines[StoreDecline.FORGOTTEN] += 1
                return True, []
            entry = self._entries.pop(key, None)
            if entry is None:
                return False, []
            copies = list(entry.copies.values())
            for copy in copies:
                self.budgets[copy.tier].remove(copy)
            entry.copies.clear()
            return True, [copy for copy in copies if copy.pins == 0]

    def note_copied(self, key: DonorKey, tokens: int) -> None:
        """A newer donor holds its first ``tokens`` too."""
        with self.lock:
            for budget in self.budgets.values():
                budget.policy.note_copied(key, tokens)

    def forget_tenant(self, tenant: str) -> tuple[TenantReport, list[Copy]]:
        """(what was held or on its way, the copies whose bytes are to be freed now)."""
        with self.lock:
            found = self._report(tenant)
            for key in [key for key in self._coming if tenant_of(key.namespace) == tenant]:
                del self._coming[key]
                self.tally.declines[StoreDecline.FORGOTTEN] += 1
            theirs = [entry for key, entry in self._entries.items() if tenant_of(key.namespace) == tenant]
            for budget in self.budgets.values():
                budget.policy.forget_ghosts(lambda key: tenant_of(cast(DonorKey, key).namespace) == tenant)
            return found, [copy for entry in theirs for copy in self._take_out(entry)]

    def too_old(self) -> int:
        """Who was captured before is not served, in nanoseconds since 1970."""
        return 0 if self._max_age_s is None else time.time_ns() - int(self._max_age_s * 1e9)

    def expire(self, born_before: int) -> list[tuple[DonorKey, list[Copy]]]:
        """Forget who is too old: each with the copies whose bytes are to be freed now."""
        with self.lock:
            expired = [entry for entry in self._entries.values() if entry.born < born_before]
            self.tally.gone[Gone.EXPIRED] += len(expired)
            return [(entry.key, self._take_out(entry)) for entry in expired]

    def report(self, tenant: str) -> TenantReport:
        """What is held of a tenant, or on its way."""
        with self.lock:
            return self._report(tenant)

    def is_coming(self, entry: Entry) -> bool:
        with self.lock:
            return self._coming.get(entry.key) is entry

    def release(self, tier: Tier, charge: int) -> None:
        with self.lock:
            self.budgets[tier].release(charge)

    def tier_of(self, key: DonorKey) -> Tier | None:
        with self.lock:
            entry = None if self.closed else self._entries.get(key)
            return None if entry is None or entry.born < self.too_old() else entry.fastest.tier

    def may_promote(self, copy: Copy, tier: Tier) -> bool:
        with self.lock:
            return copy.listed and copy.pins == 0 and tier not in copy.entry.copies

    def holds_below(self, copy: Copy) -> bool:
        """Whether a slower tier has the donor too."""
        with self.lock:
            tiers = list(Tier)
            return any(tiers.index(tier) > tiers.index(copy.tier) for tier in copy.entry.copies)

    def entries_in(self, tier: Tier) -> list[Entry]:
        """The next victim first."""
        with self.lock:
            return [self._entries[cast(DonorKey, key)] for key in self.budgets[tier].policy.order()]

    def count(self, change: Callable[[Tally], None]) -> None:
        with self.lock:
            change(self.tally)

    def stats(self) -> StoreStats:
        with self.lock:
            tiers = {
                tier: self.tally.tier(
                    tier,
                    limit_bytes=budget.limit,
                    used=budget.used,
                    donors=len(budget.copies),
                    pinned=budget.pinned_donors,
                )
                for tier, budget in self.budgets.items()
            }
            return self.tally.snapshot(tiers, pending=len(self._coming), donors=len(self._entries))

    def check_integrity(self) -> None:
        with self.lock:
            for tier, budget in self.budgets.items():
                budget.check_integrity()
                listed = {key for key, entry in self._entries.items() if tier in entry.copies}
                assert listed == set(budget.copies), f"the donors of the {tier} tier do not add up"
                assert all(self._entries[key].copies[tier] is budget.copies[key] for key in listed), "a stray copy"
            assert all(entry.copies for entry in self._entries.values()), "a visible donor without bytes"
            assert not self._entries.keys() & self._coming.keys(), "a donor is both held and on its way"

    def _take_out(self, entry: Entry) -> list[Copy]:
        """The copies to be freed now. All are overwritten, also those that somebody still reads."""
        del self._entries[entry.key]
        copies = list(entry.copies.values())
        entry.copies.clear()
        for copy in copies:
            copy.scrub = True
            self.budgets[copy.tier].remove(copy)
        return [copy for copy in copies if copy.pins == 0]

    def _report(self, tenant: str) -> TenantReport:
        held = [entry for key, entry in self._entries.items() if tenant_of(key.namespace) == tenant]
        coming = sum(tenant_of(key.namespace) == tenant for key in self._coming)
        charges = sum(copy.charge for entry in held for copy in entry.copies.values())
        return TenantReport(stored=len(held) + coming, bytes=charges)

    def _held(self, copy: Copy) -> Copy:
        self.budgets[copy.tier].pin(copy)
        return copy

    def _unlist(self, copy: Copy, reason: Gone) -> bool:
        self.budgets[copy.tier].remove(copy, evicted=reason is Gone.EVICTED)
        del copy.entry.copies[copy.tier]
        if copy.entry.copies:
            return False
        del self._entries[copy.entry.key]
        self.tally.gone[reason] += 1
        return True
