"""Policies that go by how often a key was used."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from semblend_core.eviction.policy import Entry, EvictionPolicy, Key, Spared
from semblend_core.eviction.ranked import Ranking


class ScoredPolicy(EvictionPolicy[Key]):
    """Whoever has the lowest score goes first; a score changes only when its key is used."""

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(capacity)
        self._ranking: Ranking[Key] = Ranking()
        self._uses: dict[Key, int] = {}

    @abstractmethod
    def score(self, entry: Entry, uses: int) -> float:
        """``uses``: how often the key was accessed since it came in, that access included."""

    def victim(self, spared: Spared[Key] | None = None) -> Key | None:
        return self._ranking.first(spared)

    def check_integrity(self) -> None:
        super().check_integrity()
        self._ranking.check_integrity()
        assert set(self._ranking) == set(self.entries) == set(self._uses), "the ranking and the keys differ"

    def _admit(self, key: Key, entry: Entry, now: float) -> bool:
        self._uses[key] = 1
        self._ranking.place(key, self.score(entry, 1))
        return True

    def _touch(self, key: Key, entry: Entry, now: float) -> None:
        uses = self._uses[key] = self._uses[key] + 1
        self._ranking.place(key, self.score(entry, uses))

    def _reprice(self, key: Key, entry: Entry) -> None:
        self._ranking.place(key, self.score(entry, self._uses[key]))

    def _remove(self, key: Key, entry: Entry, evicted: bool) -> None:
        self._ranking.drop(key)
        del self._uses[key]


class LeastFrequentlyUsed(ScoredPolicy[Key]):
    """Fewest uses since it came in; among equals, the least recently used."""

    name: ClassVar[str] = "lfu"

    def score(self, entry: Entry, uses: int) -> float:
        return uses
