"""Where donors lie, for fleets that do not tell: the workers that served them, as they said themselves."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

W = TypeVar("W", bound=Hashable)


class Landings(Generic[W]):
    """Bounded, thread-safe. A guess: nobody says when a worker drops KV, so the oldest landings are dropped first.

    With Dynamo its KV index answers instead.
    """

    def __init__(self, limit_per_worker_tokens: int = 1_000_000) -> None:
        """``limit_per_worker_tokens``: about what a worker's KV cache holds."""
        if limit_per_worker_tokens < 1:
            raise ValueError(f"limit_per_worker_tokens must be at least 1, got {limit_per_worker_tokens}")
        self._limit = limit_per_worker_tokens
        self._by_worker: dict[W, OrderedDict[tuple[str, str], int]] = {}
        self._totals: dict[W, int] = {}
        self._lock = threading.Lock()

    def landed(self, namespace_digest: str, donor_id: str, worker: W, tokens: int) -> None:
        """The worker said that it served this donor. Also to be called when a donor was of use there again."""
        with self._lock:
            held = self._by_worker.setdefault(worker, OrderedDict())
            key = (namespace_digest, donor_id)
            self._totals[worker] = self._totals.get(worker, 0) + tokens - held.pop(key, 0)
            held[key] = tokens
            while self._totals[worker] > self._limit and len(held) > 1:
                self._totals[worker] -= held.popitem(last=False)[1]

    def held(self, namespace_digest: str, donor_id: str) -> dict[W, int]:
        """By worker: how many of the donor's leading tokens it should have."""
        key = (namespace_digest, donor_id)
        with self._lock:
            return {worker: held[key] for worker, held in self._by_worker.items() if key in held}

    def forget_donor(self, namespace_digest: str, donor_id: str) -> None:
        key = (namespace_digest, donor_id)
        with self._lock:
            for worker, held in self._by_worker.items():
                self._totals[worker] -= held.pop(key, 0)

    def forget_worker(self, worker: W) -> None:
        """It died or restarted: its cache is empty."""
        with self._lock:
            self._by_worker.pop(worker, None)
            self._totals.pop(worker, None)
