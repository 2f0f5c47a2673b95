"""Finished asks, kept for a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from semblend_core.contract import Evidence
from semblend_core.evidence.inbox import DonorKey


@dataclass(frozen=True, slots=True)
class Finding:
    """Evidence and the offer it came from, so that it can be withdrawn when that donor is forgotten."""

    evidence: Evidence
    key: DonorKey
    ticket: int


class Answers:
    """Bounded in number and in age; the oldest goes first. Not thread-safe."""

    def __init__(self, limit: int, lifetime_s: float, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, tuple[Finding, ...]]] = OrderedDict()
        self.expired = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, request_id: str, findings: tuple[Finding, ...]) -> None:
        self.discard(request_id)
        self._kept[request_id] = (self._clock() + self._lifetime_s, findings)
        self._expire()

    def get(self, request_id: str) -> tuple[Finding, ...] | None:
        self._expire()
        kept = self._kept.get(request_id)
        return None if kept is None else kept[1]

    def discard(self, request_id: str) -> None:
        self._kept.pop(request_id, None)

    def _expire(self) -> None:
        # Insertion order is order of age, so the first one tells.
        while self._kept:
            deadline, _ = next(iter(self._kept.values()))
            if len(self._kept) <= self._limit and deadline > self._clock():
                return
            self._kept.popitem(last=False)
            self.expired += 1
