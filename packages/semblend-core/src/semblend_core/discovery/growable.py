"""Flat numpy storage that grows, and the allocator of runs inside it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

GROWTH = 8.0
"""An unused tail is address space, not memory: the system commits it when it is first written. Copies are dear."""


def grown(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """``array`` if it holds ``size`` items, else a larger copy.

    Its tail is 0, not what somebody freed: that may be tokens of a tenant who was purged.
    """
    if size <= array.size:
        return array
    larger = np.zeros(max(size, int(array.size * GROWTH)), array.dtype)
    larger[: array.size] = array
    return larger


class ExtentAllocator:
    """Hands out contiguous runs of positions, first fit, joining neighbours when they are freed."""

    def __init__(self) -> None:
        self.end = 0
        """One past the highest position ever handed out and not given back."""
        self.used = 0
        self._length_by_start: dict[int, int] = {}
        self._start_by_end: dict[int, int] = {}

    def allocate(self, length: int) -> int:
        self.used += length
        for start, free in self._length_by_start.items():
            if free >= length:
                self._unlist(start)
                if free > length:
                    self._list(start + length, free - length)
                return start
        start = self.end
        self.end += length
        return start

    def free(self, start: int, length: int) -> None:
        self.used -= length
        before = self._start_by_end.get(start)
        if before is not None:
            length += self._unlist(before)
            start = before
        if start + length in self._length_by_start:
            length += self._unlist(start + length)
        if start + length == self.end:
            self.end = start
        else:
            self._list(start, length)

    def check_integrity(self) -> None:
        free = sum(self._length_by_start.values())
        assert self.used + free == self.end, "free and used runs do not add up"
        edges = sorted((start, start + length) for start, length in self._length_by_start.items())
        assert all(end < start for (_, end), (start, _) in pairwise(edges)), "free runs touch"

    def _list(self, start: int, length: int) -> None:
        self._length_by_start[start] = length
        self._start_by_end[start + length] = start

    def _unlist(self, start: int) -> int:
        length = self._length_by_start.pop(start)
        del self._start_by_end[start + length]
        return length
