"""A background thread with a bounded queue in front of it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    run: Callable[[], object]
    dropped: Callable[[], None] = lambda: None
    """Called instead of ``run`` when the lane stops first."""
    nbytes: int = 0
    """Bytes that are held while the job waits."""


class Lane:
    """Runs jobs one after another. ``submit`` never waits for them; a job's error is logged and ends that job only."""

    def __init__(self, name: str, depth: int, max_bytes: int, idle: Callable[[], bool] | None = None) -> None:
        """``idle`` is called while nothing waits, until it returns False.

        From the first job on: while an engine starts it may capture CUDA graphs, and memory that another thread pins
        meanwhile makes the capture fail, and with it the start.
        """
        self._depth = depth
        self._max_bytes = max_bytes
        self._idle = idle
        self._jobs: deque[Job] = deque()
        self._bytes = 0
        self._running = False
        self._begun = False
        self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"semblend-store-{name}", daemon=True)
        self._thread.start()

    def submit(self, job: Job, *, always: bool = False) -> bool:
        """Queue ``job``. False when the queue is full or the lane stopped. ``always``: full or not."""
        with self._changed:
            if self._stopped or not (always or self._fits(job.nbytes)):
                return False
            self._jobs.append(job)
            self._bytes += job.nbytes
            self._changed.notify_all()
            return True

    def has_room_for(self, nbytes: int) -> bool:
        with self._changed:
            return not self._stopped and self._fits(nbytes)

    def flush(self, timeout: float) -> bool:
        """Wait until nothing waits or runs. False after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._running, timeout)

    def _fits(self, nbytes: int) -> bool:
        # A donor larger than the byte limit may wait alone, or it could never be taken at all.
        return len(self._jobs) < self._depth and (not self._jobs or self._bytes + nbytes <= self._max_bytes)

    def stop(self) -> None:
        """Drop what waits; what runs runs to its end."""
        with self._changed:
            self._stopped = True
            dropped = list(self._jobs)
            self._jobs.clear()
            self._bytes = 0
            self._changed.notify_all()
        for job in dropped:
            _guarded(job.dropped)

    def join(self, timeout: float) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while True:
            job = self._next()
            if job is None:
                return
            _guarded(job.run)
            del job  # It holds the source's tensors.
            with self._changed:
                self._running = False
                self._changed.notify_all()

    def _next(self) -> Job | None:
        while True:
            with self._changed:
                if self._idle is None or not self._begun:
                    self._changed.wait_for(lambda: self._jobs or self._stopped)
                if self._stopped:
                    return None
                if self._jobs:
                    job = self._jobs.popleft()
                    self._bytes -= job.nbytes
                    self._running = self._begun = True
                    return job
            if self._idle is not None and not _guarded(self._idle):
                self._idle = None


def _guarded(call: Callable[[], object]) -> object:
    """None for a call that failed."""
    try:
        return call()
    except Exception:
        logger.exception("a background job of the donor store failed")
        return None
