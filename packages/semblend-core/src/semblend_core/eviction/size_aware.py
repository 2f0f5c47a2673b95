"""Recency weighed by size: a large key must have been used more recently than a small one."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar

from semblend_core.eviction.policy import Entry, EvictionPolicy, Key, Spared


class SizeAwareLru(EvictionPolicy[Key]):
    """The largest product of size and age goes first. The age is counted in accesses, the size in powers of two.

    Within a power of two the least recently used is the oldest, so only one candidate per power is compared.
    """

    name: ClassVar[str] = "size_aware_lru"

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(capacity)
        self._clock = 0
        self._classes: dict[int, OrderedDict[Key, int]] = {}
        self._class_of: dict[Key, int] = {}

    def victim(self, spared: Spared[Key] | None = None) -> Key | None:
        best: tuple[int, int] | None = None
        found: Key | None = None
        for size_class, queue in self._classes.items():
            for key, used in queue.items():
                if spared is None or not spared(key):
                    rank = ((self._clock + 1 - used) << size_class, -used)
                    if best is None or rank > best:
                        best, found = rank, key
                    break
        return found

    def check_integrity(self) -> None:
        super().check_integrity()
        assert all(self._classes.values()), "an empty class is kept"
        listed = {key: number for number, queue in self._classes.items() for key in queue}
        assert listed == self._class_of, "a key is in another class"
        assert listed.keys() == self.entries.keys(), "the classes and the keys differ"

    def _admit(self, key: Key, entry: Entry, now: float) -> bool:
        self._place(key, entry)
        return True

    def _touch(self, key: Key, entry: Entry, now: float) -> None:
        self._take(key)
        self._place(key, entry)

    def _remove(self, key: Key, entry: Entry, evicted: bool) -> None:
        self._take(key)

    def _place(self, key: Key, entry: Entry) -> None:
        self._clock += 1
        size_class = self._class_of[key] = max(1, entry.bytes).bit_length()
        self._classes.setdefault(size_class, OrderedDict())[key] = self._clock

    def _take(self, key: Key) -> None:
        size_class = self._class_of.pop(key)
        queue = self._classes[size_class]
        del queue[key]
        if not queue:
            del self._classes[size_class]
