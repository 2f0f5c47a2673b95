"""Recency weighed by what a loss costs: who is cheap to lose must have been used more recently to stay."""

from __future__ import annotations

import math
from typing import ClassVar

from semblend_core.eviction.policy import Entry, EvictionPolicy, Key, Spared
from semblend_core.eviction.ranked import Ranking


class PricedLru(EvictionPolicy[Key]):
    """The largest age by price per byte goes first. Ages are counted in accesses, prices in powers of two.

    Within a power of two the least recently used goes first, so only one candidate of each is compared. Where all cost
    the same per byte, this is the order of least recent use.
    """

    name: ClassVar[str] = "priced_lru"

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(capacity)
        self._clock = 0
        self._levels: dict[int, Ranking[Key]] = {}
        self._level_of: dict[Key, int] = {}

    def victim(self, spared: Spared[Key] | None = None) -> Key | None:
        best, found = -math.inf, None
        for level, keys in self._levels.items():
            key = keys.first(spared)
            if key is not None:
                age = math.log2(self._clock + 1 - keys.score_of(key)) - level
                if age > best:
                    best, found = age, key
        return found

    def check_integrity(self) -> None:
        super().check_integrity()
        listed = {key: level for level, keys in self._levels.items() for key in keys}
        assert listed == self._level_of, "a key is at another level"
        assert listed.keys() == self.entries.keys(), "the levels and the keys differ"
        assert all(map(len, self._levels.values())), "an empty level is kept"
        for keys in self._levels.values():
            keys.check_integrity()

    def _admit(self, key: Key, entry: Entry, now: float) -> bool:
        self._clock += 1
        self._place(key, entry, self._clock)
        return True

    def _touch(self, key: Key, entry: Entry, now: float) -> None:
        self._clock += 1
        self._take(key)
        self._place(key, entry, self._clock)

    def _reprice(self, key: Key, entry: Entry) -> None:
        self._place(key, entry, self._take(key))

    def _remove(self, key: Key, entry: Entry, evicted: bool) -> None:
        self._take(key)

    def _place(self, key: Key, entry: Entry, used: float) -> None:
        level = self._level_of[key] = round(math.log2(max(1e-12, entry.price_ms / max(1, entry.bytes))))
        keys = self._levels.get(level)
        if keys is None:
            keys = self._levels[level] = Ranking()
        keys.place(key, used)

    def _take(self, key: Key) -> float:
        level = self._level_of.pop(key)
        keys = self._levels[level]
        used = keys.score_of(key)
        keys.drop(key)
        if not keys:
            del self._levels[level]
        return used
