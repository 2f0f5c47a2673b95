"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from semblend_core.telemetry.reader import read_audit

_HANGS_S = 600.0
"""No limit of speed: what has not happened by then never will."""


def wait_until(happened: Callable[[], object], what: str, *, every_s: float = 0.05) -> None:
    """Return when ``happened()`` is true. AssertionError, with ``what``, where it never becomes so."""
    end = time.monotonic() + _HANGS_S
    while not happened():
        assert time.monotonic() < end, f"it never happened: {what}"
        time.sleep(every_s)


def records_so_far(audit: Path) -> list[dict[str, Any]]:
    """Of an audit stream that an engine still writes, in the background: its file may not be there yet."""
    return list(read_audit(audit).records) if audit.exists() else []
