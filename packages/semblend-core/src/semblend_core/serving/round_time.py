"""How long requests may be looked up in one round, or step, of the scheduler: its thread has others to serve."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOKUPS = 4
"""A round has time for as many lookups that take all the time they may. Most take a small part of it."""


class RoundTime:
    """The requests in front are asked about first. Those for whom no time is left are asked about in the next round,
    where those in front of them are known already. So everybody's turn comes, in the queue's order."""

    def __init__(self, lookup_s: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._budget_s, self.clock = LOOKUPS * lookup_s, clock
        self._spent_s = 0.0

    def begin(self) -> None:
        """A round begins."""
        self._spent_s = 0.0

    @property
    def is_up(self) -> bool:
        """Somebody is always asked about, or nobody's turn would come."""
        return self._spent_s > 0 and self._spent_s >= self._budget_s

    @contextmanager
    def spending(self) -> Iterator[None]:
        began = self.clock()
        try:
            yield
        finally:
            self._spent_s += self.clock() - began
