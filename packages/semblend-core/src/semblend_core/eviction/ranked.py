"""A set of keys in the order of a score that changes when they are used."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic

from semblend_core.eviction.policy import Key, Spared

SLACK = 64
"""Outdated places that are always tolerated."""


class Ranking(Generic[Key]):
    """The lowest score first; among equals, whoever was placed longest ago. O(log n) per operation, amortised.

    A key that moves leaves its old place in the heap, which is skipped later. When more than half of the heap is
    such places, it is built anew.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Key]] = []
        self.places: dict[Key, tuple[float, int, Key]] = {}
        """Score, moment and key of all, in no order. To be read only."""
        self._clock = 0

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Key]:
        return iter(self.places)

    def place(self, key: Key, score: float) -> None:
        """Give ``key`` a score, its first or another one."""
        self._clock += 1
        place = self.places[key] = (score, self._clock, key)
        heap = self._heap
        heappush(heap, place)
        if len(heap) > 2 * len(self.places) + SLACK:
            self._tidy()

    def drop(self, key: Key) -> None:
        del self.places[key]
        if len(self._heap) > 2 * len(self.places) + SLACK:
            self._tidy()

    def score_of(self, key: Key) -> float:
        return self.places[key][0]

    def first(self, spared: Spared[Key] | None = None) -> Key | None:
        """The key with the lowest score that is not spared."""
        heap, places = self._heap, self.places
        aside: list[tuple[float, int, Key]] = []
        found: Key | None = None
        while heap:
            place = heap[0]
            key = place[2]
            if places.get(key) is not place:
                heappop(heap)
            elif spared is not None and spared(key):
                aside.append(heappop(heap))
            else:
                found = key
                break
        for place in aside:
            heappush(heap, place)
        return found

    def _tidy(self) -> None:
        self._heap = list(self.places.values())
        heapify(self._heap)

    def check_integrity(self) -> None:
        assert len(self._heap) <= 2 * len(self.places) + SLACK, "outdated places pile up"
        assert set(map(id, self.places.values())) <= set(map(id, self._heap)), "a key has no place"
