"""Our own policy: expected worth where it pays, and whoever does better where it does not."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import ClassVar

from semblend_core.eviction.expected_worth import ExpectedWorth
from semblend_core.eviction.policy import Entry, EvictionPolicy, Key, Spared
from semblend_core.eviction.recency import LeastRecentlyUsed
from semblend_core.eviction.semantic import AdaptiveSemantic

CLEARLY_BETTER = 1.01
MEMORY = 4
"""Budgets of accesses after which a hit counts for little."""
FEWEST = 256
"""Accesses that are always remembered."""


class CostAware(EvictionPolicy[Key]):
    """Three policies each keep the books of a cache of their own; whoever saved most lately decides for the real one.

    They are expected worth, adaptive semantic and least recently used. What is saved is prefill time, or tokens where
    that is not known. The real cache gives up what the leader's does not hold, so it soon holds the same. So a workload
    that one of them does not understand costs no more than the time to notice.
    """

    name: ClassVar[str] = "cost_aware"

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(capacity)
        self._experts: tuple[EvictionPolicy[Key], ...] = (
            ExpectedWorth(capacity),
            AdaptiveSemantic(capacity),
            LeastRecentlyUsed(capacity),
        )
        self._saved = [0.0] * len(self._experts)
        self._leads = 1  # What is known of kinds of text serves from the first access on; the odds must be learnt.
        self._unit = 1.0
        """What a saved millisecond counts now. It grows, so that those of long ago count for less."""
        self._strays: OrderedDict[Key, None] = OrderedDict()
        """Held here, and not by the leader."""
        self._accesses = 0
        self._look_at = FEWEST // 4

    @property
    def leader(self) -> str:
        """Whom it follows now."""
        return self._experts[self._leads].name

    @property
    def ghosts(self) -> int:
        shadows = sum(key not in self.entries for expert in self._experts for key in expert)
        return shadows + sum(expert.ghosts for expert in self._experts)

    def forget_ghosts(self, gone: Callable[[Key], bool] | None = None) -> None:
        for expert in self._experts:
            expert.forget_ghosts(gone)
            for key in [key for key in expert if key not in self.entries and (gone is None or gone(key))]:
                expert.remove(key, evicted=False)

    def victim(self, spared: Spared[Key] | None = None) -> Key | None:
        for key in self._strays:
            if spared is None or not spared(key):
                return key
        held = self.entries
        return self._experts[self._leads].victim(lambda key: key not in held or (spared is not None and spared(key)))

    def check_integrity(self) -> None:
        super().check_integrity()
        leader = self._experts[self._leads]
        assert self._strays.keys() == {key for key in self.entries if key not in leader}, "a stray is not known"
        for expert in self._experts:
            expert.check_integrity()

    def _admit(self, key: Key, entry: Entry, now: float) -> bool:
        self._access(key, entry, now)
        if key not in self._experts[self._leads]:
            full = self.capacity is not None and self.held + entry.bytes > self.capacity
            if full and self.may_refuse:
                return False
            self._strays[key] = None
        return True

    def _touch(self, key: Key, entry: Entry, now: float) -> None:
        self._access(key, entry, now)
        if key in self._experts[self._leads]:
            self._strays.pop(key, None)
        else:
            self._strays[key] = None

    def _remove(self, key: Key, entry: Entry, evicted: bool) -> None:
        self._strays.pop(key, None)
        if not evicted:
            for expert in self._experts:
                expert.remove(key, evicted=False)

    def _access(self, key: Key, entry: Entry, now: float) -> None:
        self._accesses += 1
        if self._accesses >= self._look_at:
            self._choose_leader()
        self._unit *= 1 + 1 / max(FEWEST, MEMORY * len(self.entries))
        saved = (entry.saved_ms or entry.tokens) * self._unit
        budget = self.capacity or max(self.held, entry.bytes)
        for number, expert in enumerate(self._experts):
            if key in expert.entries:
                self._saved[number] += saved
                expert.touch(key, now, entry)
            else:
                expert.admit(key, entry, now)
            while expert.held > budget:
                victim = expert.victim(key.__eq__)
                victim = key if victim is None else victim
                expert.remove(victim)
                if number == self._leads and victim in self.entries:
                    self._strays[victim] = None

    def _choose_leader(self) -> None:
        """Not too often: who follows another one must find out what it holds."""
        self._look_at = self._accesses + max(FEWEST // 4, len(self.entries) // 4)
        best = max(range(len(self._experts)), key=self._saved.__getitem__)
        if self._saved[best] > CLEARLY_BETTER * self._saved[self._leads]:
            self._leads = best
            leader = self._experts[best]
            self._strays = OrderedDict((key, None) for key in self.entries if key not in leader.entries)
        if self._unit > 1e100:
            self._saved = [each / self._unit for each in self._saved]
            self._unit = 1.0
