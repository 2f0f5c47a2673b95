"""Host memory pinned in large pieces and lent out in small ones.

Pinning is slow (it touches every page and takes the driver's locks), so it happens a slab at a time, on the host
tier's own thread: when a donor needs it, and from the first donor on ahead of need, while that thread is idle.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from semblend_core.kv.store.clean_memory import clean_bytes

ALIGNMENT = 256
_SMALLEST_PINNED = 64 * 1024


@dataclass(frozen=True, slots=True)
class Extent:
    slab: int
    offset: int
    size: int


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class SlabPool:
    """Threads: any. ``grow`` takes long and is for a background thread."""

    def __init__(self, total_bytes: int, slab_bytes: int, *, pinned: bool) -> None:
        self.pinned = pinned
        self._planned = _slab_sizes(total_bytes, slab_bytes, pinned)
        self.capacity = sum(self._planned)
        self._slabs: list[Tensor] = []
        self._holes: list[list[tuple[int, int]]] = []
        """Per slab: free (offset, size), by offset, no two adjacent."""
        self._lock = threading.Lock()
        self._growing = threading.Lock()

    def fits(self, size: int, count: int) -> bool:
        """Whether ``count`` pieces of ``size`` have room once all slabs are there and nothing is lent."""
        return sum(slab // aligned(size) for slab in self._planned) >= count

    def grow(self) -> bool:
        """Pin one more slab. False when all are there."""
        with self._growing:
            if len(self._slabs) == len(self._planned):
                return False
            slab = clean_bytes(self._planned[len(self._slabs)], pinned=self.pinned)
            with self._lock:
                self._slabs.append(slab)
                self._holes.append([(0, slab.numel() // ALIGNMENT * ALIGNMENT)])
            return True

    def take(self, sizes: Sequence[int]) -> list[Extent] | None:
        """Room for each of ``sizes``, or None and nothing taken."""
        taken: list[Extent] = []
        with self._lock:
            for size in sizes:
                extent = self._first_fit(aligned(size))
                if extent is None:
                    for lent in taken:
                        self._put_back(lent)
                    return None
                taken.append(extent)
        return taken

    def give(self, extents: Sequence[Extent]) -> None:
        with self._lock:
            for extent in extents:
                self._put_back(extent)

    def bytes_of(self, extent: Extent, size: int) -> Tensor:
        """The first ``size`` bytes of ``extent``."""
        return self._slabs[extent.slab][extent.offset : extent.offset + size]

    @property
    def free_bytes(self) -> int:
        with self._lock:
            return sum(size for holes in self._holes for _, size in holes)

    def check_integrity(self) -> None:
        with self._lock:
            for slab, holes in zip(self._slabs, self._holes, strict=True):
                ends = [0]
                for offset, size in holes:
                    assert size > 0, "an empty hole"
                    assert offset >= ends[-1], "holes overlap"
                    assert offset > ends[-1] or offset == 0, "adjacent holes were not joined"
                    ends.append(offset + size)
                assert ends[-1] <= slab.numel(), "a hole beyond its slab"

    def _first_fit(self, size: int) -> Extent | None:
        for slab, holes in enumerate(self._holes):
            for index, (offset, room) in enumerate(holes):
                if room >= size:
                    holes[index : index + 1] = [(offset + size, room - size)] if room > size else []
                    return Extent(slab, offset, size)
        return None

    def _put_back(self, extent: Extent) -> None:
        holes = self._holes[extent.slab]
        start, end = extent.offset, extent.offset + extent.size
        index = next((i for i, (offset, _) in enumerate(holes) if offset >= end), len(holes))
        last = index
        if index < len(holes) and holes[index][0] == end:
            end += holes[index][1]
            last += 1
        if index and sum(holes[index - 1]) == start:
            index -= 1
            start = holes[index][0]
        holes[index:last] = [(start, end - start)]


def _slab_sizes(total: int, slab: int, pinned: bool) -> list[int]:
    sizes = []
    while total >= (_SMALLEST_PINNED if pinned else ALIGNMENT):
        # torch's allocator of pinned memory rounds up to a power of two: asking for one keeps the budget true.
        size = min(slab, 1 << (total.bit_length() - 1) if pinned else total)
        sizes.append(size)
        total -= size
    return sizes
