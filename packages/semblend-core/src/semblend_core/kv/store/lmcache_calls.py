"""LMCache's client at work on a thread of its own, so that a server that does not answer holds nobody up for long."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from semblend_core.kv.store.vocabulary import StoreDecline, StoreFaultError

Result = TypeVar("Result")


class BoundedCalls:
    """One call after another: the client for ``lm://`` mixes up the answers to calls that overlap.

    The threads that LMCache starts in a call end with the process, as this one does; left alone they would outlive it.
    """

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Future[object], Callable[[], object]]] = queue.SimpleQueue()
        self._overdue: Future[object] | None = None
        threading.Thread(target=self._work, name="semblend-store-lmcache-calls", daemon=True).start()

    def call(self, work: Callable[[], Result], timeout_s: float) -> Result:
        """StoreFaultError where it takes too long, or an earlier call still does. What ``work`` raises, otherwise."""
        if self._overdue is not None and not self._overdue.done():
            raise StoreFaultError(StoreDecline.LMCACHE_ERROR, "LMCache has not answered an earlier call yet")
        future: Future[Result] = Future()
        self._waiting.put((future, work))  # type: ignore[arg-type]
        try:
            return future.result(timeout_s)
        except TimeoutError as error:
            if future.done():
                raise  # It is what ``work`` raised.
            self._overdue = future  # type: ignore[assignment]
            raise StoreFaultError(
                StoreDecline.LMCACHE_ERROR, f"LMCache did not answer within {timeout_s:g} s"
            ) from error

    def _work(self) -> None:
        while True:
            future, work = self._waiting.get()
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            del future, work
