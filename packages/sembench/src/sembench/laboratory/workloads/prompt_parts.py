"""Parts that synthetic prompts are put together from, and the clock and dice of a workload."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from sembench.laboratory.requests import CacheRequest, key_of


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A stretch of text that stands for itself: the same part is the same text in every prompt."""

    name: str
    kind: str
    tokens: int


class Scene:
    """Deals parts and puts requests together. Same seed, same workload, in every process."""

    def __init__(self, workload: str, seed: int, mean_gap_s: float) -> None:
        self.dice = random.Random(f"{workload}:{seed}")
        self.requests: list[CacheRequest] = []
        self._workload = workload
        self._mean_gap_s = mean_gap_s
        self._now = 0.0
        self._numbers = count()

    def part(self, kind: str, least: int, most: int) -> PromptPart:
        """A part that nobody has seen before."""
        return PromptPart(f"{kind}-{next(self._numbers)}", kind, self.dice.randint(least, most))

    def parts(self, number: int, kind: str, least: int, most: int) -> list[PromptPart]:
        return [self.part(kind, least, most) for _ in range(number)]

    def pick(self, among: Sequence[PromptPart], skew: float = 0.0) -> PromptPart:
        """By Zipf's law: the first is the likeliest, by more the larger ``skew`` is; 0: all alike."""
        weights = [1.0 / rank**skew for rank in range(1, len(among) + 1)]
        return self.dice.choices(among, weights)[0]

    def send(self, parts: Iterable[PromptPart], session: str = "") -> None:
        self._now += self.dice.expovariate(1.0 / self._mean_gap_s)
        chosen = list(parts)
        self.requests.append(
            CacheRequest(
                request_id=f"{self._workload}-{len(self.requests):05d}",
                at_s=round(self._now, 3),
                keys=tuple(key_of(part.name) for part in chosen),
                tokens=tuple(part.tokens for part in chosen),
                kinds=tuple(part.kind for part in chosen),
                session_id=session,
            )
        )
