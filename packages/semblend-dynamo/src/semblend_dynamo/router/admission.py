"""Back-pressure: so many requests are under way, so many wait their turn, and the rest are told to come later."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from semblend_dynamo.gateway.errors import too_busy


class Admission:
    """First come, first served. ``room`` says how many may be under way now; it changes as replicas come and go."""

    def __init__(self, room: Callable[[], int], queue: int, timeout_s: float) -> None:
        self._room = room
        self._queue = queue
        self._timeout_s = timeout_s
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.under_way = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def enter(self) -> None:
        """Return when there is room; a Refusal where there is none in time. ``leave`` follows."""
        if not self._waiting and self.under_way < self._room():
            self.under_way += 1
            return
        if len(self._waiting) >= self._queue:
            raise too_busy("all replicas are busy and the queue is full")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._timeout_s):
                await turn
        except TimeoutError:
            if turn.done() and not turn.cancelled():
                return  # The turn came in the same moment.
            raise too_busy(f"all replicas stayed busy for {self._timeout_s:g} s") from None
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            raise
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)

    def leave(self) -> None:
        self.under_way -= 1
        self.admit()

    def admit(self) -> None:
        """Let those in for whom there is room now; also to be called when a replica came back."""
        while self._waiting and self.under_way < self._room():
            turn = self._waiting.popleft()
            if not turn.done():
                self.under_way += 1
                turn.set_result(None)
