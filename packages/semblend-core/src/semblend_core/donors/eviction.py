"""Which donor goes when a budget is full."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class EvictionPolicy(ABC, Generic[Key]):
    """Told of every addition, use and removal; names a victim when asked. Not thread-safe: the owner holds its lock."""

    @abstractmethod
    def added(self, key: Key, tokens: int) -> None: ...

    @abstractmethod
    def used(self, key: Key) -> None:
        """``key`` served a request. Unknown keys are ignored."""

    @abstractmethod
    def removed(self, key: Key) -> None:
        """``key`` is gone, evicted or forgotten. Unknown keys are ignored."""

    @abstractmethod
    def victim(self, spared: Callable[[Key], bool]) -> Key | None:
        """The key to evict next, leaving out those that are ``spared``; None when all are."""

    @abstractmethod
    def order(self) -> list[Key]:
        """All keys, the next victim first."""


class LeastRecentlyUsed(EvictionPolicy[Key]):
    def __init__(self) -> None:
        self._keys: OrderedDict[Key, None] = OrderedDict()

    def added(self, key: Key, tokens: int) -> None:
        self._keys[key] = None

    def used(self, key: Key) -> None:
        if key in self._keys:
            self._keys.move_to_end(key)

    def removed(self, key: Key) -> None:
        self._keys.pop(key, None)

    def victim(self, spared: Callable[[Key], bool]) -> Key | None:
        return next((key for key in self._keys if not spared(key)), None)

    def order(self) -> list[Key]:
        return list(self._keys)


class LeastFrequentlyUsed(EvictionPolicy[Key]):
    """Fewest uses first; among equals, the least recently touched."""

    def __init__(self) -> None:
        self._uses: dict[Key, int] = {}
        self._by_uses: dict[int, OrderedDict[Key, None]] = {}

    def added(self, key: Key, tokens: int) -> None:
        self._place(key, 0)

    def used(self, key: Key) -> None:
        if key in self._uses:
            uses = self._uses[key]
            self._take(key)
            self._place(key, uses + 1)

    def removed(self, key: Key) -> None:
        if key in self._uses:
            self._take(key)

    def victim(self, spared: Callable[[Key], bool]) -> Key | None:
        for uses in sorted(self._by_uses):
            for key in self._by_uses[uses]:
                if not spared(key):
                    return key
        return None

    def order(self) -> list[Key]:
        return [key for uses in sorted(self._by_uses) for key in self._by_uses[uses]]

    def _place(self, key: Key, uses: int) -> None:
        self._uses[key] = uses
        self._by_uses.setdefault(uses, OrderedDict())[key] = None

    def _take(self, key: Key) -> None:
        uses = self._uses.pop(key)
        del self._by_uses[uses][key]
        if not self._by_uses[uses]:
            del self._by_uses[uses]


POLICIES: dict[str, type[EvictionPolicy[int]]] = {"lru": LeastRecentlyUsed, "lfu": LeastFrequentlyUsed}
"""By the name used in ``SEMBLEND_EVICTION``."""
