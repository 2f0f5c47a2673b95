"""Requests between lookup and outcome: their pins, and which reports are second ones."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from semblend_core.contract import short_id
from semblend_core.donors import DonorRecord, DonorRegistry

REMEMBERED_REPORTS = 4096
"""Requests kept to tell a second report from a first; an engine repeats itself soon or never."""


@dataclass(frozen=True, slots=True)
class _Pinned:
    donors: tuple[DonorRecord, ...]
    namespace: str
    expires: float


class OpenRequests:
    """Thread-safe. A plan whose outcome never comes loses its pins after ``ttl_s``."""

    def __init__(self, registry: DonorRegistry, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._ttl_s = ttl_s
        self._clock = clock
        self._pinned: OrderedDict[str, _Pinned] = OrderedDict()
        self._reported: OrderedDict[str, None] = OrderedDict()
        """By ``short_id``: clients choose ids, and their length."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._pinned)

    def begin(self, request_id: str) -> None:
        """A lookup starts: an earlier plan for the same request is void, and its outcome may be reported anew."""
        with self._lock:
            self._reported.pop(short_id(request_id), None)
            self._release(request_id)
        self.release_expired()

    def hold(self, request_id: str, namespace: str, donors: list[DonorRecord]) -> None:
        """Keep ``donors``, pinned by the caller, until the outcome is reported."""
        with self._lock:
            self._release(request_id)  # Two lookups of one request at once: the later plan counts.
            self._pinned[request_id] = _Pinned(tuple(donors), namespace, self._clock() + self._ttl_s)

    def report(self, request_id: str) -> tuple[bool, str | None]:
        """Release the request's pins: (whether this is its first report, namespace digest if there was a plan)."""
        with self._lock:
            namespace = self._release(request_id)
            name = short_id(request_id)
            first = name not in self._reported
            self._reported[name] = None
            while len(self._reported) > REMEMBERED_REPORTS:
                self._reported.popitem(last=False)
            return first, namespace

    def release_expired(self) -> None:
        """Release the pins of plans whose outcome is overdue."""
        now = self._clock()
        with self._lock:
            while self._pinned and next(iter(self._pinned.values())).expires <= now:
                self._release(next(iter(self._pinned)))

    def clear(self) -> None:
        with self._lock:
            for request_id in list(self._pinned):
                self._release(request_id)

    def _release(self, request_id: str) -> str | None:
        held = self._pinned.pop(request_id, None)
        if held is None:
            return None
        self._registry.unpin(held.donors)
        return held.namespace
