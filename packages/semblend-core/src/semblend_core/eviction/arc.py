"""ARC: recency and frequency share the budget, and the ghosts of each say who needs more of it."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import ClassVar

from semblend_core.eviction.ghosts import Ghosts
from semblend_core.eviction.policy import Entry, EvictionPolicy, Key, Spared


class AdaptiveReplacement(EvictionPolicy[Key]):
    """Keys used once and keys used again, each in order of use. A return from one list's ghosts enlarges its share.

    Sizes count instead of numbers, so that it holds donors as well as blocks.
    """

    name: ClassVar[str] = "arc"

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(capacity)
        self._once: OrderedDict[Key, None] = OrderedDict()
        self._again: OrderedDict[Key, None] = OrderedDict()
        self._once_bytes = 0
        self._once_ghosts: Ghosts[Key, bool] = Ghosts()
        self._again_ghosts: Ghosts[Key, bool] = Ghosts()
        self.target = 0.0
        """How much of the budget keys that were used once may take."""
        self._newcomer: Key | None = None
        self._was_again = False
        """Whether the newcomer came back from the ghosts of what was used again."""

    @property
    def ghosts(self) -> int:
        return len(self._once_ghosts) + len(self._again_ghosts)

    def forget_ghosts(self, gone: Callable[[Key], bool] | None = None) -> None:
        self._once_ghosts.forget(gone)
        self._again_ghosts.forget(gone)

    def victim(self, spared: Spared[Key] | None = None) -> Key | None:
        once = self._once_bytes
        if self._newcomer is not None and self._newcomer in self._once:
            once -= self.entries[self._newcomer].bytes
        from_once = once > 0 and (once > self.target or (self._was_again and once >= self.target))
        for queue in (self._once, self._again) if from_once else (self._again, self._once):
            for key in queue:
                if spared is None or not spared(key):
                    return key
        return None

    def check_integrity(self) -> None:
        super().check_integrity()
        assert self._once.keys() | self._again.keys() == self.entries.keys(), "the lists and the keys differ"
        assert not self._once.keys() & self._again.keys(), "a key is in both lists"
        assert self._once_bytes == sum(self.entries[key].bytes for key in self._once), "a list is miscounted"
        assert 0 <= self.target <= self._budget, "the target is out of bounds"
        self._once_ghosts.check_integrity()
        self._again_ghosts.check_integrity()

    @property
    def _budget(self) -> int:
        return self.capacity or max(1, self.held, math.ceil(self.target))

    def _admit(self, key: Key, entry: Entry, now: float) -> bool:
        once, again = self._once_ghosts.bytes, self._again_ghosts.bytes
        self._newcomer, self._was_again = key, False
        if self._once_ghosts.pop(key):
            self.target = min(self._budget, self.target + max(1.0, again / max(1, once)) * entry.bytes)
            self._again[key] = None
        elif self._again_ghosts.pop(key):
            self.target = max(0.0, self.target - max(1.0, once / max(1, again)) * entry.bytes)
            self._again[key] = None
            self._was_again = True
        else:
            self._once[key] = None
            self._once_bytes += entry.bytes
        return True

    def _touch(self, key: Key, entry: Entry, now: float) -> None:
        if key in self._once:
            del self._once[key]
            self._once_bytes -= entry.bytes
            self._again[key] = None
        else:
            self._again.move_to_end(key)

    def _resize(self, key: Key, change: int) -> None:
        if key in self._once:
            self._once_bytes += change

    def _remove(self, key: Key, entry: Entry, evicted: bool) -> None:
        if key in self._once:
            del self._once[key]
            self._once_bytes -= entry.bytes
            ghosts = self._once_ghosts
        else:
            del self._again[key]
            ghosts = self._again_ghosts
        if evicted:
            ghosts.add(key, entry.bytes, True)
        self._trim()

    def _trim(self) -> None:
        """Used once and its ghosts: one budget. Everything: two. What is held may be more than that by itself."""
        while self._once_ghosts and self._once_bytes + self._once_ghosts.bytes > self._budget:
            self._once_ghosts.drop_oldest()
        while self.ghosts and self.held + self._once_ghosts.bytes + self._again_ghosts.bytes > 2 * self._budget:
            (self._again_ghosts or self._once_ghosts).drop_oldest()
