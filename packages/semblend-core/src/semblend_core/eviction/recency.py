"""Policies that go by the order in which keys came or were used."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar

from semblend_core.eviction.policy import Entry, EvictionPolicy, Key, Spared


class FirstInFirstOut(EvictionPolicy[Key]):
    """Who came first goes first, whatever was used since."""

    name: ClassVar[str] = "fifo"

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(capacity)
        self._queue: OrderedDict[Key, None] = OrderedDict()

    def victim(self, spared: Spared[Key] | None = None) -> Key | None:
        return next((key for key in self._queue if spared is None or not spared(key)), None)

    def check_integrity(self) -> None:
        super().check_integrity()
        assert self._queue.keys() == self.entries.keys(), "the queue and the keys differ"

    def _admit(self, key: Key, entry: Entry, now: float) -> bool:
        self._queue[key] = None
        return True

    def _touch(self, key: Key, entry: Entry, now: float) -> None:
        pass

    def _remove(self, key: Key, entry: Entry, evicted: bool) -> None:
        del self._queue[key]


class LeastRecentlyUsed(FirstInFirstOut[Key]):
    """Who was used longest ago goes first."""

    name: ClassVar[str] = "lru"

    def _touch(self, key: Key, entry: Entry, now: float) -> None:
        self._queue.move_to_end(key)
