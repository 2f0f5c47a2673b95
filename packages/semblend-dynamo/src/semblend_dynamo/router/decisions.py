"""The newest decisions, for people who ask why a request went where it went. No prompt, key or salt is in them."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Decision:
    request_id: str
    tenant: str
    """Digest of the circle; empty where the request shares with nobody."""
    model: str
    tokens: int
    chosen: str
    path: str
    reason: str
    similarity: float | None
    decided_ms: float
    at: float = field(default_factory=time.time)
    landed: str | None = None
    """Who answered; None: nobody (yet)."""
    attempts: int = 0
    status: int | None = None
    cached_tokens: int | None = None
    """The engine's own count; None: it gave none."""


class DecisionLog:
    def __init__(self, limit: int) -> None:
        self._newest: deque[Decision] = deque(maxlen=limit)

    def add(self, decision: Decision) -> None:
        self._newest.appendleft(decision)

    def newest(self) -> list[dict[str, Any]]:
        return [asdict(each) for each in self._newest]
