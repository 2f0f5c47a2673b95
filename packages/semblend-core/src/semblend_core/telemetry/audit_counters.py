"""Where audit records went, and the warning when some went nowhere."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

logger = logging.getLogger(__name__)

WARN_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class AuditCounters:
    """Where the emitted records went. Their sum is the number of ``emit`` calls."""

    written: int = 0
    dropped_queue_full: int = 0
    """The disk was slower than the events."""
    dropped_io_error: int = 0
    """The disk was full, the path not writable, the directory gone, or another writer held the file."""
    dropped_closed: int = 0
    """Emitted after close, or in a forked child."""
    dropped_unencodable: int = 0
    """Held a value that JSON cannot express: a mistake of the caller."""
    queued: int = 0
    """Waiting for the writer. A gauge."""

    @property
    def dropped(self) -> int:
        """All that will never be read, for whatever reason."""
        lost = self.dropped_queue_full + self.dropped_io_error
        return lost + self.dropped_closed + self.dropped_unencodable


class AuditAlarm:
    """Tells the ordinary log that records are lost: at once, then at most once a minute, and when it is over.

    Used by the writer's thread only, so that no log handler ever runs on the thread that emits.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._told = 0
        self._told_at: float | None = None
        self._failing = False
        """An I/O error was told and its end was not."""

    def look(self, counters: AuditCounters, error: Exception | None, *, recovered: bool) -> None:
        """Called after each batch. ``error`` stopped it; ``recovered``: some of it reached the disk."""
        if self._failing and recovered and error is None:
            self._failing = False
            logger.warning("SemBlend's audit log %s is written again; %s", self._path, _losses(counters))
        if counters.dropped <= self._told:
            return
        now = time.monotonic()
        if self._told_at is None or now - self._told_at >= WARN_EVERY_S:
            cause = error if error is not None else "see the counts"
            logger.warning("SemBlend's audit log %s loses records: %s; %s", self._path, cause, _losses(counters))
            self._told, self._told_at, self._failing = counters.dropped, now, error is not None


def _losses(counters: AuditCounters) -> str:
    return (
        f"lost so far: {counters.dropped_io_error} to I/O errors, "
        f"{counters.dropped_queue_full} to a full queue (raise SEMBLEND_AUDIT_QUEUE), "
        f"{counters.dropped_unencodable} that JSON cannot express"
    )
