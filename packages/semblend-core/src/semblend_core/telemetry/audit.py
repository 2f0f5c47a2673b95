"""The audit log: events in, JSON lines out, and nothing of it on the caller's time."""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol, SupportsFloat, SupportsIndex, TypeAlias

from semblend_core.settings import Settings
from semblend_core.telemetry.counters import AuditAlarm, AuditCounters
from semblend_core.telemetry.donor_names import DonorNames
from semblend_core.telemetry.events import AuditEvent, as_record
from semblend_core.telemetry.rotating_file import RotatingFile

_BATCH = 256
"""Records written with one system call at most."""
_EXIT_TIMEOUT_S = 2.0

_Item: TypeAlias = tuple[float, AuditEvent] | threading.Event | None
"""A record and its time, a mark to set once everything before it is settled, or the end."""


class AuditSink(Protocol):
    """Where events go. No method raises for a fault of the sink."""

    def emit(self, event: AuditEvent) -> None: ...
    def counters(self) -> AuditCounters: ...
    def flush(self, timeout: float = 5.0) -> bool: ...
    def close(self, timeout: float = 5.0) -> bool: ...


class NoAudit:
    """The sink for when no audit stream is wanted: drops everything, counts nothing."""

    def emit(self, event: AuditEvent) -> None:
        pass

    def counters(self) -> AuditCounters:
        return AuditCounters()

    def flush(self, timeout: float = 5.0) -> bool:
        return True

    def close(self, timeout: float = 5.0) -> bool:
        return True


class AuditLog:
    """Writes events to ``path``, one JSON object per line.

    Threads: ``emit`` may be called from any thread and from finalizers. It takes a lock for a few additions,
    never waits for the disk and never raises. One daemon thread encodes, writes and rotates.

    Processes: one log per file, which a lock on the file enforces; put ``{pid}`` into ``path`` where several
    processes share a setting. A forked child has no writer thread, so there the log is closed: it drops and
    counts, and the parent's goes on. Make a new log in the child.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        engine: str,
        *,
        max_bytes: int = 64 * 1024**2,
        backups: int = 3,
        queue_size: int = 8192,
        client_id: Callable[[str], str] | None = None,
    ) -> None:
        self.path = os.fspath(path).replace("{pid}", str(os.getpid()))
        self.engine = engine
        self._client_id = client_id
        self._donors = DonorNames()
        self._file = RotatingFile(self.path, max_bytes=max_bytes, backups=backups)
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._queue_size = queue_size
        # Reentrant: a finalizer may emit while this very thread is inside emit.
        self._lock = threading.RLock()
        self._closed = False
        self._queued = self._written = 0
        self._queue_full = self._io_error = self._after_close = self._unencodable = 0
        self._alarm = AuditAlarm(self.path)
        self._thread = threading.Thread(target=self._run, name="semblend-audit", daemon=True)
        self._thread.start()
        _open_logs.add(self)
        atexit.register(self._close_at_exit)

    def emit(self, event: AuditEvent) -> None:
        """Stamp ``event`` with the time and queue it for the writer. A full queue: drop it and count."""
        with self._lock:
            if self._closed:
                self._after_close += 1
            elif self._queued >= self._queue_size:
                self._queue_full += 1
            else:
                self._queued += 1
                # Inside the lock, so that nothing lands behind the closing mark.
                self._queue.put((time.time(), event))

    def counters(self) -> AuditCounters:
        """A consistent snapshot."""
        with self._lock:
            return AuditCounters(
                written=self._written,
                dropped_queue_full=self._queue_full,
                dropped_io_error=self._io_error,
                dropped_closed=self._after_close,
                dropped_unencodable=self._unencodable,
                queued=self._queued,
            )

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until all that was emitted before is written or dropped. False if ``timeout`` seconds passed.

        Written means handed to the operating system: it survives the process, not a power cut.
        """
        mark = threading.Event()
        with self._lock:
            if self._closed:
                return self._queued == 0
            self._queue.put(mark)
        return mark.wait(timeout)

    def close(self, timeout: float = 5.0) -> bool:
        """Write what is queued and stop. False if it was not done within ``timeout`` seconds. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        atexit.unregister(self._close_at_exit)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _close_at_exit(self) -> None:
        self.close(_EXIT_TIMEOUT_S)

    def _run(self) -> None:
        ended = False
        while not ended:
            items = self._next_batch()
            self._write([item for item in items if isinstance(item, tuple)])
            for item in items:
                if isinstance(item, threading.Event):
                    item.set()
            ended = items[-1] is None
        self._file.close()

    def _next_batch(self) -> list[_Item]:
        """At least one item; the end mark is always the last one."""
        items = [self._queue.get()]
        with contextlib.suppress(queue.Empty):
            while items[-1] is not None and len(items) < _BATCH:
                items.append(self._queue.get_nowait())
        return items

    def _write(self, records: list[tuple[float, AuditEvent]]) -> None:
        lines = [line for line in map(self._encode, records) if line is not None]
        written: int = 0
        error: Exception | None = None
        try:
            written, error = self._file.write(lines) if lines else (0, None)
        except Exception as unforeseen:  # whatever it is, the writer must outlive it
            error = unforeseen
        lost = len(lines) - written
        self._settle(len(records), written=written, io_error=lost, unencodable=len(records) - len(lines))
        with contextlib.suppress(Exception):  # a broken log handler is not our reader's loss
            self._alarm.look(self.counters(), error, recovered=written > 0)

    def _encode(self, record: tuple[float, AuditEvent]) -> bytes | None:
        stamp, event = record
        try:
            record_of = as_record(event, engine=self.engine, time=stamp, client_id=self._client_id)
            flat = self._donors.renamed(record_of)
            text = json.dumps(flat, default=_plain, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
        except Exception:  # one wrong value must not cost the other records
            return None
        return text.encode() + b"\n"

    def _settle(self, taken: int, *, written: int = 0, io_error: int = 0, unencodable: int = 0) -> None:
        with self._lock:
            self._queued -= taken
            self._written += written
            self._io_error += io_error
            self._unencodable += unencodable

    def _forked(self) -> None:
        """In a child: the writer is not here, nor is the thread that may have held the lock."""
        self._lock = threading.RLock()
        self._closed = True
        self._queued = 0
        self._file.abandon()


def open_audit(settings: Settings, engine: str, client_id: Callable[[str], str] | None = None) -> AuditSink:
    """The audit stream that ``settings`` ask for. A path that cannot be written is warned of and retried.

    ``client_id``: from the engine's id of a request to the one that its client sent, where the two differ.
    """
    if not settings.audit_path:
        return NoAudit()
    return AuditLog(
        settings.audit_path,
        engine,
        max_bytes=settings.audit_max_bytes,
        backups=settings.audit_backups,
        queue_size=settings.audit_queue,
        client_id=client_id,
    )


def _plain(value: object) -> int | float | None:
    """numpy's scalars as numbers. Nothing becomes text by itself: what prints may print a secret."""
    if isinstance(value, SupportsIndex):
        return value.__index__()
    if isinstance(value, SupportsFloat):
        number = float(value)
        return number if math.isfinite(number) else None
    raise TypeError(f"{type(value).__name__} has no place in an audit record")


_open_logs: weakref.WeakSet[AuditLog] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for log in tuple(_open_logs):
        log._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
