"""What happens during a point: the answers so far, and how well the generator itself keeps up."""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sembench.load.answer import Answer

_LAG_EVERY_S = 0.02
_PATIENCE_S = 2.0


@dataclass
class Watch:
    """Filled while a point runs; ``stopped`` tells why it has to end early."""

    window_start: float
    window_end: float
    hopeless_after: int
    """So many failures in a row, over at least two seconds, mean that the server is gone."""
    min_requests: int = 0
    """The window stays open beyond its end until so many requests were due in it."""
    answers: list[Answer] = field(default_factory=list)
    items: list[str] = field(default_factory=list)
    """The recipients of the counted requests."""
    lags: list[float] = field(default_factory=list)
    in_flight: int = 0
    in_flight_max: int = 0
    waiting: int = 0
    waiting_max: int = 0
    backlog_at_start: int | None = None
    backlog: int | None = None
    stopped: str | None = None
    ended: float | None = None
    _admitted: int = 0
    _failures: int = 0
    _failing_since: float = 0.0

    def counts(self, due: float) -> bool:
        return self.window_start <= due < self.window_end

    def is_open_at(self, moment: float) -> bool:
        """Whether the window has not ended then."""
        return moment < self.window_end or self._admitted < self.min_requests

    def admit(self, due: float) -> None:
        """A request is due: on a slow server the window waits for it."""
        if due >= self.window_start and self._admitted < self.min_requests:
            self.window_end = max(self.window_end, math.nextafter(due, math.inf))
        self._admitted += self.counts(due)

    def begins(self, due: float, item_id: str | None) -> None:
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        if item_id is not None and self.counts(due):
            self.items.append(item_id)

    def ends(self, answer: Answer | None) -> None:
        """None for a request that was broken off by us."""
        self.in_flight -= 1
        if answer is None:
            return
        self.answers.append(answer)
        if answer.error is None:
            self._failures = 0
            return
        now = time.monotonic()
        self._failing_since = self._failing_since if self._failures else now
        self._failures += 1
        if self._failures >= self.hopeless_after and now - self._failing_since >= _PATIENCE_S:
            why = f"{self._failures} requests failed in a row, the last with {answer.error}: {answer.detail}"
            self.stopped = self.stopped or why

    def leave(self, dues: Iterable[float]) -> None:
        """What is still unanswered when the point ends is a failure, not an omission."""
        self.ended = time.monotonic()
        for due in dues:
            answer = Answer(due)
            answer.fail("unfinished", "not answered when the point ended", self.ended)
            self.answers.append(answer)

    def waits(self, really: bool) -> None:
        self.waiting += 1
        if really:
            self.waiting_max = max(self.waiting_max, self.waiting)

    def waits_no_more(self) -> None:
        self.waiting -= 1

    async def measure_lag(self) -> None:
        """A timer that should fire every 20 ms: how late it does is how late all else is noticed."""
        due = time.monotonic()
        while True:
            due += _LAG_EVERY_S
            await asyncio.sleep(due - time.monotonic())
            now = time.monotonic()
            if self.counts(now):
                self.lags.append(now - due)
            due = max(due, now - _LAG_EVERY_S)


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection while a point runs: it stops all streams for as long as it takes."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
