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
        self._places: dict[Key, tuple[float, int, Key]] = {}
        self._clock = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[Key]:
        return iter(self._places)

    def place(self, key: Key, score: float) -> None:
        """Give ``key`` a score, its first or another one."""
        self._clock += 1
        place = (score, self._clock, key)
        self._places[key] = place
        heappush(self._heap, place)
        self._tidy()

    def drop(self, key: Key) -> None:
        del self._places[key]
        self._tidy()

    def score_of(self, key: Key) -> float:
        return self._places[key][0]

    def first(self, spared: Spared[Key] | None = None) -> Key | None:
        """The key with the lowest score that is not spared."""
        heap, places = self._heap, self._places
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
        if len(self._heap) > 2 * len(self._places) + SLACK:
            self._heap = list(self._places.values())
            heapify(self._heap)

    def check_integrity(self) -> None:
        assert len(self._heap) <= 2 * len(self._places) + SLACK, "outdated places pile up"
        assert set(map(id, self._places.values())) <= set(map(id, self._heap)), "a key has no place"
