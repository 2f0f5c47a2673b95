"""Our own policy: expected worth where it pays, and whoever does better where it does not."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import ClassVar

from semblend_core.eviction.expected_worth import ExpectedWorth
from semblend_core.eviction.policy import Entry, EvictionPolicy, Key, Spared
from semblend_core.eviction.priced_lru import PricedLru
from semblend_core.eviction.semantic import AdaptiveSemantic

CLEARLY_BETTER = 1.01
LOOKS = 3
"""In a row at which somebody must be clearly better than recency, which is seldom far wrong, to lead in its place."""
MEMORY = 4
"""Budgets of accesses after which a hit counts for little."""
FEWEST = 128
"""Accesses that are always remembered."""
LARGEST_UNIT = 1e100
"""Of what a saved millisecond counts, before all is counted anew. Between two looks it may grow by any number."""
SHARED_KINDS = frozenset({"system", "template", "retrieved_context"})
"""Text that many ask for. The other kinds belong to one session, and die with it."""
_BY_KIND, _BY_RECENCY = 1, 2


class CostAware(EvictionPolicy[Key]):
    """Three policies serve the same accesses; whoever saved most lately decides.

    They are expected worth, adaptive semantic and recency weighed by price. The leader keeps the books of what is
    held, the others those of a cache of their own without any KV. What is saved is prefill time. A new leader first
    gives up what its own cache would not hold. So a workload that one of them does not understand costs no more than
    the time to notice. Before anybody has shown anything, kinds decide where most text is of kinds that many share,
    and recency where not.
    """

    name: ClassVar[str] = "cost_aware"

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(capacity)
        self._experts: tuple[EvictionPolicy[Key], ...] = (
            ExpectedWorth(capacity),
            AdaptiveSemantic(capacity),
            PricedLru(capacity),
        )
        self._leads = _BY_RECENCY
        self._leader: EvictionPolicy[Key] = self._experts[_BY_RECENCY]
        self._others = self._all_but(_BY_RECENCY)
        self._saved = [0.0] * len(self._experts)
        self._unit = 1.0
        """What a saved millisecond counts now. It grows, so that those of long ago count for less."""
        self._strays: OrderedDict[Key, None] = OrderedDict()
        """Held here, and not by the leader."""
        self._shadows = 0
        """Keys that experts hold and that are not held here, counted once for each such expert."""
        self._was_full = False
        self._accesses = 0
        self._look_at = FEWEST // 4
        self._doubts = 0
        """Looks in a row at which somebody was clearly better."""

    @property
    def leader(self) -> str:
        """Whom it follows now."""
        return self._leader.name

    @property
    def ghosts(self) -> int:
        return self._shadows + sum(expert.ghosts for expert in self._experts)

    def forget_ghosts(self, gone: Callable[[Key], bool] | None = None) -> None:
        for expert in self._experts:
            expert.forget_ghosts(gone)
            for key in [key for key in expert if key not in self.entries and (gone is None or gone(key))]:
                expert.remove(key, evicted=False)
                self._shadows -= 1

    def victim(self, spared: Spared[Key] | None = None) -> Key | None:
        self._begin()
        for key in self._strays:
            if spared is None or not spared(key):
                return key
        return self._leader.victim(spared)

    def check_integrity(self) -> None:
        super().check_integrity()
        leader = self._leader
        assert leader is self._experts[self._leads], "somebody else leads"
        assert leader.entries.keys() | self._strays.keys() == self.entries.keys(), "the leader holds others"
        assert not leader.entries.keys() & self._strays.keys(), "a stray is the leader's"
        shadows = sum(key not in self.entries for expert in self._experts for key in expert)
        assert self._shadows == shadows, "what experts hold beside it is miscounted"
        for expert in self._experts:
            expert.check_integrity()

    def _admit(self, key: Key, entry: Entry, now: float) -> bool:
        self._pass_time()
        self._shadow(key, entry, now, entry.price_ms * self._unit)
        if not self._leader.admit(key, entry, now):
            return False
        for _, expert in self._others:
            self._shadows -= key in expert.entries
        return True

    def _touch(self, key: Key, entry: Entry, now: float) -> None:
        self._pass_time()
        worth = entry.price_ms * self._unit
        self._saved[self._leads] += worth
        self._shadow(key, entry, now, worth)
        if key in self._strays:
            if self._leader.admit(key, entry, now):
                del self._strays[key]
        else:
            self._leader.touch(key, now, entry)

    def _reprice(self, key: Key, entry: Entry) -> None:
        for expert in self._experts:
            expert.note_copied(key, entry.copied)

    def _remove(self, key: Key, entry: Entry, evicted: bool) -> None:
        self._strays.pop(key, None)
        self._leader.remove(key, evicted=evicted)
        for expert in self._experts:
            if key in expert.entries:
                if evicted:
                    self._shadows += 1
                else:
                    expert.remove(key, evicted=False)

    def _pass_time(self) -> None:
        if not self._accesses:
            for expert in self._experts:
                expert.may_refuse = self.may_refuse
        self._accesses += 1
        self._unit *= 1 + 1 / max(FEWEST, MEMORY * len(self.entries))
        if self._unit > LARGEST_UNIT:
            self._saved = [each / self._unit for each in self._saved]
            self._unit = 1.0
        if self._accesses >= self._look_at:
            self._choose_leader()

    def _shadow(self, key: Key, entry: Entry, now: float, worth: float) -> None:
        """Those that do not lead serve an access as each would have; ``worth``: what a hit counts."""
        budget = self.capacity or max(self.held, entry.bytes)
        held, parent = self.entries, entry.parent
        for number, expert in self._others:
            if expert.touch(key, now, entry):
                if parent is None or parent in expert.entries:
                    self._saved[number] += worth
            elif expert.admit(key, entry, now):
                self._shadows += key not in held
            while expert.held > budget:
                victim = expert.victim(key.__eq__)
                victim = key if victim is None else victim
                expert.remove(victim)
                self._shadows -= victim not in held

    def _begin(self) -> None:
        """Until now nothing had to go, so all hold the same."""
        if not self._was_full:
            self._was_full = True
            shared = sum(entry.bytes for entry in self.entries.values() if entry.kind in SHARED_KINDS)
            if 2 * shared >= self.held and self._accesses < FEWEST:
                self._follow(_BY_KIND)

    def _choose_leader(self) -> None:
        """Not too often: a new leader must go through what is held."""
        self._look_at = self._accesses + max(FEWEST // 4, len(self.entries) // 4)
        best = max(range(len(self._experts)), key=self._saved.__getitem__)
        better = self._saved[best] > CLEARLY_BETTER * self._saved[self._leads]
        self._doubts = self._doubts + 1 if better else 0
        if self._doubts >= (LOOKS if self._leads == _BY_RECENCY else 1):
            self._follow(best)

    def _follow(self, number: int) -> None:
        """The new leader's books become those of what is held; the old one's go on as those of a cache of its own."""
        self._leads, self._doubts = number, 0
        self._leader = leader = self._experts[number]
        self._others = self._all_but(number)
        for key in [key for key in leader if key not in self.entries]:
            leader.remove(key)
            self._shadows -= 1
        self._strays = OrderedDict((key, None) for key in self.entries if key not in leader.entries)

    def _all_but(self, leads: int) -> list[tuple[int, EvictionPolicy[Key]]]:
        return [(number, expert) for number, expert in enumerate(self._experts) if number != leads]
