"""What is remembered of keys that went, so that their return can be told from a first arrival."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from semblend_core.eviction.policy import Key

Memory = TypeVar("Memory")
FEWEST = 64
"""As many may always be kept."""


class Ghosts(Generic[Key, Memory]):
    """Keys in the order in which they went. The owner trims it: it must never outgrow what is held by much."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, tuple[int, Memory]] = OrderedDict()
        self.bytes = 0
        """What they took while they were held."""

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def __iter__(self) -> Iterator[Key]:
        return iter(self._kept)

    def add(self, key: Key, size: int, memory: Memory) -> None:
        self.pop(key)
        self._kept[key] = (size, memory)
        self.bytes += size

    def pop(self, key: Key) -> Memory | None:
        """What is remembered of ``key``, which is no ghost any more; None where it was none."""
        found = self._kept.pop(key, None)
        if found is None:
            return None
        self.bytes -= found[0]
        return found[1]

    def drop_oldest(self) -> None:
        if self._kept:
            self.bytes -= self._kept.popitem(last=False)[1][0]

    def trim(self, most: int) -> None:
        """Keep at most ``most`` keys."""
        while len(self._kept) > most:
            self.drop_oldest()

    def forget(self, gone: Callable[[Key], bool] | None) -> None:
        for key in list(self._kept):
            if gone is None or gone(key):
                self.pop(key)

    def check_integrity(self) -> None:
        assert self.bytes == sum(size for size, _ in self._kept.values()), "the ghosts' bytes do not add up"
