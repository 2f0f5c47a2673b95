"""Greedy dual, size and frequency: what a key saves per byte, and an age that rises as keys go."""

from __future__ import annotations

from typing import ClassVar

from semblend_core.eviction.frequency import ScoredPolicy
from semblend_core.eviction.policy import Entry, Key


class GreedyDual(ScoredPolicy[Key]):
    """Score = age + uses x cost / size. The age is the score of the last that went, so that old uses lose weight.

    The cost is the prefill time that a hit saves; where it is not known, it goes by the tokens.
    """

    name: ClassVar[str] = "gdsf"

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(capacity)
        self.age = 0.0

    def score(self, entry: Entry, uses: int) -> float:
        return self.age + uses * entry.price_ms / max(1, entry.bytes)

    def _remove(self, key: Key, entry: Entry, evicted: bool) -> None:
        if evicted:
            self.age = max(self.age, self._ranking.score_of(key))
        super()._remove(key, entry, evicted)
