"""A hash table from 32-bit tags to 32-bit values in two flat numpy arrays: no Python object per entry.

Open addressing in buckets of sixteen: the tags of one are a cache line, so a vector of lookups is a single gather,
and a second one for the few keys whose bucket is full. Buckets fill from the left and are never compacted in place,
so a bucket is full exactly when its last slot is taken; removed entries leave a tombstone until the next rebuild.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Tags: TypeAlias = npt.NDArray[np.uint32]
Values: TypeAlias = npt.NDArray[np.uint32]
Slots: TypeAlias = npt.NDArray[np.int64]

SLOTS_PER_BUCKET = 16
_SLOT_BITS = 4
_SLOT_MASK = 15
EMPTY = np.uint32(0)
TOMBSTONE = np.uint32(0xFFFFFFFF)
MAX_LOAD = 0.5
MIN_LOAD = 0.10
_SMALLEST_BITS = 4
_REBUILD_CHUNK = 1 << 17


class BucketTable:
    """Not thread-safe: the owner serialises writers and keeps them apart from readers."""

    def __init__(self, bucket_bits: int = _SMALLEST_BITS) -> None:
        self._bits = bucket_bits
        self._shift = np.uint32(32 - bucket_bits)
        self._tags: Tags = np.zeros((1 << bucket_bits, SLOTS_PER_BUCKET), np.uint32)
        self._values: Values = np.zeros((1 << bucket_bits, SLOTS_PER_BUCKET), np.uint32)
        self._fill: npt.NDArray[np.uint8] = np.zeros(1 << bucket_bits, np.uint8)
        self._used = 0
        self._live = 0

    def __len__(self) -> int:
        return self._live

    @property
    def nbytes(self) -> int:
        return int(self._tags.nbytes + self._values.nbytes + self._fill.nbytes)

    @staticmethod
    def usable(hashes: npt.NDArray[np.uint32]) -> Tags:
        """Map hashes to tags, clear of the two reserved words."""
        return np.minimum(np.maximum(hashes, np.uint32(1)), np.uint32(0xFFFFFFFE))

    def find(self, tags: Tags) -> tuple[npt.NDArray[np.int64], Slots]:
        """Which of ``tags`` are present: (indices into ``tags``, ascending, and their slots)."""
        buckets = (tags >> self._shift).astype(np.int64)
        rows = self._tags.take(buckets, axis=0)
        hits = (rows == tags[:, None]).ravel().nonzero()[0]
        found = hits >> _SLOT_BITS
        slots = (buckets[found] << _SLOT_BITS) + (hits & _SLOT_MASK)
        overflowing = rows[:, -1] != EMPTY
        overflowing[found] = False
        pending = overflowing.nonzero()[0]
        if not pending.size:
            return found, slots
        later, later_slots = self._find_behind(tags[pending], buckets[pending])
        found = np.concatenate([found, pending[later]])
        order = found.argsort()
        return found[order], np.concatenate([slots, later_slots])[order]

    def _find_behind(self, tags: Tags, buckets: Slots) -> tuple[npt.NDArray[np.int64], Slots]:
        """``find`` for tags that are not in ``buckets``, which are full, but may be in one of those behind."""
        found: list[npt.NDArray[np.int64]] = []
        slots: list[Slots] = []
        pending = np.arange(tags.size)
        while pending.size:
            buckets = (buckets + 1) & ((1 << self._bits) - 1)
            rows = self._tags.take(buckets, axis=0)
            hits = (rows == tags[pending, None]).ravel().nonzero()[0]
            hit_rows = hits >> _SLOT_BITS
            found.append(pending[hit_rows])
            slots.append((buckets[hit_rows] << _SLOT_BITS) + (hits & _SLOT_MASK))
            onward = rows[:, -1] != EMPTY
            onward[hit_rows] = False
            pending, buckets = pending[onward], buckets[onward]
        return np.concatenate(found), np.concatenate(slots)

    def values_at(self, slots: Slots) -> Values:
        return np.take(self._values.reshape(-1), slots)

    def live_values(self) -> Values:
        """The values of all tags. For checks; as slow as the table is large."""
        live = ((self._tags != EMPTY) & (self._tags != TOMBSTONE)).ravel().nonzero()[0]
        return self.values_at(live)

    def set_values(self, slots: Slots, values: Values) -> None:
        self._values.reshape(-1)[slots] = values

    def remove(self, slots: Slots) -> None:
        self._tags.reshape(-1)[slots] = TOMBSTONE
        self._live -= slots.size

    def bytes_after_inserting(self, count: int) -> int:
        """Upper bound of ``nbytes`` once ``count`` more tags are in."""
        return (8 * SLOTS_PER_BUCKET + 1) << self._bits_for(count)

    def rebuilt_for(self, count: int, pause: Callable[[], None] = lambda: None) -> BucketTable:
        """This table if ``count`` new tags suit it, else a larger, cleaned or smaller copy.

        Reads only; ``pause`` runs between chunks.
        """
        bits = self._bits_for(count)
        if bits == self._bits and self._fits(count):
            return self
        rebuilt = BucketTable(bits)
        tags, values = self._tags.reshape(-1), self._values.reshape(-1)
        for start in range(0, tags.size, _REBUILD_CHUNK):
            chunk = tags[start : start + _REBUILD_CHUNK]
            live = ((chunk != EMPTY) & (chunk != TOMBSTONE)).nonzero()[0]
            live = live[np.argsort(chunk[live])]
            rebuilt.insert_absent(chunk[live], values[start : start + _REBUILD_CHUNK][live])
            pause()
        return rebuilt

    def insert_absent(self, tags: Tags, values: Values) -> None:
        """Insert distinct, sorted tags that are not in the table. The caller made room with ``rebuilt_for``."""
        self._used += tags.size
        self._live += tags.size
        buckets = (tags >> self._shift).astype(np.int64)
        while tags.size:
            columns = self._fill[buckets] + _rank_in_group(buckets)
            slots = (buckets << _SLOT_BITS) + columns
            fits = columns < SLOTS_PER_BUCKET
            if fits.all():
                self._put(slots, columns, tags, values, buckets)
                return
            self._put(slots[fits], columns[fits], tags[fits], values[fits], buckets[fits])
            # Those that wrap around stay behind the others, so equal buckets stay together.
            tags, values = tags[~fits], values[~fits]
            buckets = (buckets[~fits] + 1) & ((1 << self._bits) - 1)

    def _put(self, slots: Slots, columns: npt.NDArray[np.int64], tags: Tags, values: Values, buckets: Slots) -> None:
        self._tags.reshape(-1)[slots] = tags
        self._values.reshape(-1)[slots] = values
        # Ranks ascend within a bucket, and of several writes to one place the last stays.
        self._fill[buckets] = columns + 1

    def check_integrity(self) -> None:
        tags = self._tags
        assert self._used == int(np.count_nonzero(tags)), "slot count is wrong"
        assert self._live == self._used - int(np.count_nonzero(tags == TOMBSTONE)), "live count is wrong"
        filled = tags != EMPTY
        assert np.array_equal(filled.sum(axis=1), self._fill), "a bucket's fill is wrong"
        assert not (filled[:, 1:] & ~filled[:, :-1]).any(), "a bucket has a hole"
        live = (filled.reshape(-1) & (tags.reshape(-1) != TOMBSTONE)).nonzero()[0]
        every_tag = tags.reshape(-1)[live]
        assert np.unique(every_tag).size == every_tag.size, "a tag is in the table twice"
        found, slots = self.find(every_tag)
        assert found.size == live.size, "an entry cannot be found"
        assert np.array_equal(np.sort(slots), live), "an entry is found in a wrong place"

    def _fits(self, count: int) -> bool:
        return self._used + count <= MAX_LOAD * self._tags.size

    def _bits_for(self, count: int) -> int:
        # A table that has become far too large would eat the byte budget of those who come after.
        spacious = self._bits > _SMALLEST_BITS and (self._live + count) < MIN_LOAD * self._tags.size
        if self._fits(count) and not spacious:
            return self._bits
        # Tombstones go with a rebuild; leave headroom so that the next one is far away.
        bits = _SMALLEST_BITS
        while (self._live + count) > 0.45 * (SLOTS_PER_BUCKET << bits):
            bits += 1
        return bits


def _rank_in_group(grouped: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0, 1, 2, ... within each run of equal values."""
    index = np.arange(grouped.size)
    first = np.ones(grouped.size, np.bool_)
    first[1:] = grouped[1:] != grouped[:-1]
    return index - np.maximum.accumulate(np.where(first, index, 0))
