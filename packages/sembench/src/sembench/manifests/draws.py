"""Random draws that give the same values on every Python version and platform."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


class Draws:
    """Draws from a named stream: the same name, the same values.

    Only ``random()`` of the standard generator is used: it alone is promised to keep its sequence between versions.
    """

    def __init__(self, *name: object) -> None:
        text = "|".join(str(part) for part in name)
        self._random = random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")).random

    def below(self, bound: int) -> int:
        return int(self._random() * bound)

    def between(self, low: int, high: int) -> int:
        """Both ends included."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        rest = list(items)
        for last in range(len(rest) - 1, 0, -1):
            other = self.below(last + 1)
            rest[last], rest[other] = rest[other], rest[last]
        return rest

    def some(self, items: Sequence[Item], count: int) -> list[Item]:
        return self.shuffled(items)[:count]

    def digits(self, count: int) -> str:
        """Never starts with a zero."""
        return str(self.between(10 ** (count - 1), 10**count - 1))


def stable_id(dataset: str, source: str, transform: str, role: str, index: int) -> str:
    """The first 16 hex digits of a sha256; the separator cannot be part of a name."""
    text = "\x1f".join((dataset, source, transform, role, str(index)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
