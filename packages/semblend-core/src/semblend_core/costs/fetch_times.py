"""How long requests are held up by donors that are not in memory, as on a disk or on a server."""

from __future__ import annotations

import statistics
from collections import deque

REMEMBERED = 9
"""Requests of about one length. A tier that has become faster is believed after half of them."""
LEAST_SHARE = 0.25
"""Of the time that a longer fetch took. A part of that is the same for every fetch, whatever its length."""


class FetchTimes:
    """Learned from the last requests that were held up, or could have been. In microseconds."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[tuple[int, float]]] = {}
        """By length, in powers of two: many short fetches say little of what a long one takes."""

    def note(self, tokens: int, microseconds: float) -> None:
        """The fetch of so many tokens has held its request up for so long, 0 where it came in time."""
        seen = self._seen.setdefault(tokens.bit_length(), deque(maxlen=REMEMBERED))
        seen.append((max(1, tokens), microseconds))

    def expected(self, tokens: int) -> float:
        """0 where nothing is known, and where most came in time. Not swayed by the few that took far longer."""
        if not tokens or not self._seen:
            return 0.0
        nearest = min(self._seen, key=lambda length: abs(length - tokens.bit_length()))
        return statistics.median(took * max(LEAST_SHARE, tokens / known) for known, took in self._seen[nearest])
