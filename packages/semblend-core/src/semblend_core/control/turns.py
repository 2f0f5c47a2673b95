"""Work of other threads that waits for the scheduler's, which never waits for them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

Result = TypeVar("Result")


class NoTurnError(TimeoutError):
    """The scheduler did not come to it in time, and will not do it later."""


@dataclass(eq=False)
class _Waiting:
    work: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: Exception | None = None

    def run(self) -> None:
        try:
            self.result = self.work()
        except Exception as error:
            self.error = error
        self.done.set()


class Turns:
    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._lock = threading.Lock()

    def take(self) -> None:
        """On the scheduler's thread, between two steps: do what waits."""
        while self._waiting:
            with self._lock:
                waiting = self._waiting.popleft() if self._waiting else None
            if waiting is not None:
                waiting.run()

    def call(self, work: Callable[[], Result], timeout: float) -> Result:
        """On another thread: what ``work`` returns or raises when the scheduler does it."""
        waiting = _Waiting(work)
        with self._lock:
            self._waiting.append(waiting)
        if not waiting.done.wait(timeout):
            with self._lock:
                given_up = waiting in self._waiting
                if given_up:
                    self._waiting.remove(waiting)
            if given_up:
                raise NoTurnError(f"the engine's scheduler did not come to it within {timeout:g} s: is it paused?")
            waiting.done.wait()  # It has begun, and is quick.
        if waiting.error is not None:
            raise waiting.error
        result: Result = waiting.result
        return result
