"""S3-FIFO: a small queue for newcomers, a main queue for what was used again, and ghosts of who failed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import ClassVar

from semblend_core.eviction.ghosts import FEWEST, Ghosts
from semblend_core.eviction.policy import Entry, EvictionPolicy, Key, Spared

MOST_USES = 3
"""Uses are counted up to here."""


class S3Fifo(EvictionPolicy[Key]):
    """A newcomer that is not used more than once while it passes the small queue goes, and is remembered.

    ``small``: the small queue's share of the budget. As many ghosts are kept as keys are held.
    """

    name: ClassVar[str] = "s3fifo"

    def __init__(self, capacity: int | None = None, small: float = 0.1) -> None:
        super().__init__(capacity)
        if not 0 < small < 1:
            raise ValueError(f"small={small} must lie between 0 and 1")
        self._share = small
        self._small: OrderedDict[Key, None] = OrderedDict()
        self._main: OrderedDict[Key, None] = OrderedDict()
        self._small_bytes = 0
        self._uses: dict[Key, int] = {}
        self._ghosts: Ghosts[Key, bool] = Ghosts()

    @property
    def ghosts(self) -> int:
        return len(self._ghosts)

    def forget_ghosts(self, gone: Callable[[Key], bool] | None = None) -> None:
        self._ghosts.forget(gone)

    def victim(self, spared: Spared[Key] | None = None) -> Key | None:
        # Each key may be passed by once per use it has, and once more because it is spared.
        for _ in range((MOST_USES + 2) * (len(self._small) + len(self._main)) + 1):
            if self._main and self._small_bytes < self._share * (self.capacity or self.held):
                found = self._pass_main(spared)
            elif self._small:
                found = self._pass_small(spared)
            else:
                found = self._pass_main(spared) if self._main else None
            if found is not None:
                return found
        return next((key for key in self.entries if spared is None or not spared(key)), None)

    def check_integrity(self) -> None:
        super().check_integrity()
        assert self._small.keys() | self._main.keys() == self.entries.keys(), "the queues and the keys differ"
        assert not self._small.keys() & self._main.keys(), "a key is in both queues"
        assert self._small_bytes == sum(self.entries[key].bytes for key in self._small), "the small queue is miscounted"
        assert len(self._ghosts) <= max(FEWEST, len(self.entries) + 1), "too many ghosts"
        self._ghosts.check_integrity()

    def _pass_small(self, spared: Spared[Key] | None) -> Key | None:
        key = next(iter(self._small))
        if self._uses[key] > 1:
            del self._small[key]
            self._small_bytes -= self.entries[key].bytes
            self._main[key] = None
            self._uses[key] = 0
        elif spared is not None and spared(key):
            self._small.move_to_end(key)
        else:
            return key
        return None

    def _pass_main(self, spared: Spared[Key] | None) -> Key | None:
        key = next(iter(self._main))
        if self._uses[key] > 0:
            self._uses[key] -= 1
        elif spared is None or not spared(key):
            return key
        self._main.move_to_end(key)
        return None

    def _admit(self, key: Key, entry: Entry, now: float) -> bool:
        self._uses[key] = 0
        if self._ghosts.pop(key):
            self._main[key] = None
        else:
            self._small[key] = None
            self._small_bytes += entry.bytes
        return True

    def _touch(self, key: Key, entry: Entry, now: float) -> None:
        self._uses[key] = min(MOST_USES, self._uses[key] + 1)

    def _resize(self, key: Key, change: int) -> None:
        if key in self._small:
            self._small_bytes += change

    def _remove(self, key: Key, entry: Entry, evicted: bool) -> None:
        del self._uses[key]
        if key in self._small:
            del self._small[key]
            self._small_bytes -= entry.bytes
            if evicted:
                self._ghosts.add(key, entry.bytes, True)
        else:
            del self._main[key]
        self._ghosts.trim(max(FEWEST, len(self.entries)))
