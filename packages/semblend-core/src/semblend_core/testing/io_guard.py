"""Catch disk, network and process use on one thread, through Python's own audit events."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FORBIDDEN_EVENTS = (
    "open",
    "socket.",
    "subprocess.",
    "os.system",
    "os.posix_spawn",
    "os.fork",
    "os.exec",
    "shutil.",
    "urllib.",
)

_guarded = threading.local()
_installed = threading.Lock()
_hooks = 0


@contextmanager
def forbid_io_on_this_thread() -> Iterator[None]:
    """Within the block, I/O begun by the calling thread fails the test. Other threads are free."""
    _install_hook()
    _guarded.events = []
    try:
        yield
        seen = _guarded.events
    finally:
        _guarded.events = None
    assert not seen, f"I/O on the scheduler's thread: {seen}"


def _install_hook() -> None:
    # An audit hook cannot be removed, so there is one for the process and a thread-local switch.
    global _hooks
    with _installed:
        if not _hooks:
            sys.addaudithook(_record)
            _hooks = 1


def _record(event: str, arguments: tuple[Any, ...]) -> None:
    events = getattr(_guarded, "events", None)
    if events is not None and event.startswith(FORBIDDEN_EVENTS):
        events.append((event, str(arguments[:1])))
