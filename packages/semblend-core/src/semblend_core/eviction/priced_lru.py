"""Recency weighed by what a loss costs: who is cheap to lose must have been used more recently to stay."""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import lru_cache
from typing import ClassVar, Generic

from semblend_core.eviction.policy import Entry, EvictionPolicy, Key, Spared
from semblend_core.eviction.ranked import Ranking


class _Level(Generic[Key]):
    """Keys of one price per byte, with the moment of their last use."""

    def __init__(self) -> None:
        self.used: OrderedDict[Key, int] = OrderedDict()
        """In the order of their last use."""
        self.repriced: Ranking[Key] = Ranking()
        """Those that have not been used since their price brought them here."""

    def __len__(self) -> int:
        return len(self.used) + len(self.repriced.places)

    def use(self, key: Key, now: int) -> None:
        if key in self.repriced.places:
            self.repriced.drop(key)
        self.used[key] = now
        self.used.move_to_end(key)

    def take(self, key: Key) -> int:
        used = self.used.pop(key, None)
        if used is None:
            used = int(self.repriced.score_of(key))
            self.repriced.drop(key)
        return used

    def first(self, spared: Spared[Key] | None) -> tuple[int, Key] | None:
        """Who was used longest ago, and when."""
        key = self.repriced.first(spared) if self.repriced.places else None
        found = None if key is None else (int(self.repriced.score_of(key)), key)
        for key, used in self.used.items():
            if spared is None or not spared(key):
                return (used, key) if found is None or used < found[0] else found
        return found


class PricedLru(EvictionPolicy[Key]):
    """The largest age by price per byte goes first. Ages are counted in accesses, prices in powers of two.

    Within a power of two the least recently used goes first, so only one candidate of each is compared. Among equals,
    and where all cost the same per byte, the least recently used goes first.
    """

    name: ClassVar[str] = "priced_lru"

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(capacity)
        self._clock = 0
        self._levels: dict[int, _Level[Key]] = {}
        self._level_of: dict[Key, int] = {}

    def victim(self, spared: Spared[Key] | None = None) -> Key | None:
        best, found = (0.0, 0), None
        for level, keys in self._levels.items():
            first = keys.first(spared)
            if first is not None:
                used, key = first
                rank = math.ldexp(self._clock + 1 - used, -level), -used
                if found is None or rank > best:
                    best, found = rank, key
        return found

    def check_integrity(self) -> None:
        super().check_integrity()
        listed = {key: level for level, keys in self._levels.items() for key in (*keys.used, *keys.repriced)}
        assert listed == self._level_of, "a key is at another level"
        assert listed.keys() == self.entries.keys(), "the levels and the keys differ"
        assert all(map(len, self._levels.values())), "an empty level is kept"
        for keys in self._levels.values():
            assert list(keys.used.values()) == sorted(keys.used.values()), "a level is not in the order of use"
            assert not keys.used.keys() & keys.repriced.places.keys(), "a key is at its level twice"
            keys.repriced.check_integrity()

    def _admit(self, key: Key, entry: Entry, now: float) -> bool:
        self._clock += 1
        self._at(key, _level_for(entry)).use(key, self._clock)
        return True

    def _touch(self, key: Key, entry: Entry, now: float) -> None:
        self._clock += 1
        level, before = _level_for(entry), self._level_of[key]
        if level != before:
            self._take(key)
            self._at(key, level)
        self._levels[level].use(key, self._clock)

    def _reprice(self, key: Key, entry: Entry) -> None:
        used = self._take(key)
        self._at(key, _level_for(entry)).repriced.place(key, used)

    def _remove(self, key: Key, entry: Entry, evicted: bool) -> None:
        self._take(key)

    def _at(self, key: Key, level: int) -> _Level[Key]:
        """``key`` is at this level from now on."""
        self._level_of[key] = level
        keys = self._levels.get(level)
        if keys is None:
            keys = self._levels[level] = _Level()
        return keys

    def _take(self, key: Key) -> int:
        level = self._level_of.pop(key)
        keys = self._levels[level]
        used = keys.take(key)
        if not keys:
            del self._levels[level]
        return used


def _level_for(entry: Entry) -> int:
    return _power_of(entry.price_ms / max(1, entry.bytes))


@lru_cache(maxsize=4096)
def _power_of(price: float) -> int:
    return round(math.log2(max(1e-12, price)))
