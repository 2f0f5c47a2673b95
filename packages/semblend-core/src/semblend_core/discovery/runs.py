"""From fingerprint hits to verified, maximal runs of equal tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from semblend_core.contract import TokenIds

Ints = npt.NDArray[np.int64]


class Run(NamedTuple):
    """Recipient tokens [start, end) equal the donor's from ``donor_start`` on. ``donor`` is the index's serial."""

    start: int
    end: int
    donor: int
    donor_start: int

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Diagonals:
    """Lines in the recipient x donor plane on which fingerprints agree: donor position = query position + ``shift``."""

    donor: Ints
    shift: Ints
    first: Ints
    """Lowest query position with a hit."""
    last: Ints
    """Highest query position with a hit."""
    hits: Ints

    @classmethod
    def of(cls, query: Ints, donor: Ints, donor_position: Ints) -> Diagonals:
        """Group hits by donor and shift."""
        shift = donor_position - query
        # One sortable word: 31 bits of donor above 32 of shift (positions are below 2**31, so shifts fit).
        key = (donor << 32) + (shift + (1 << 31))
        order = np.argsort(key)
        ordered = key[order]
        starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if key.size else np.empty(0, np.int64)
        by_key = query[order]
        heads = order[starts]
        return cls(
            donor=donor[heads],
            shift=shift[heads],
            first=np.minimum.reduceat(by_key, starts) if starts.size else starts,
            last=np.maximum.reduceat(by_key, starts) if starts.size else starts,
            hits=np.diff(np.append(starts, key.size)),
        )

    def strongest(self, count: int, newest_rank: Ints) -> Diagonals:
        """The ``count`` diagonals with most hits, newer donors first among equals."""
        if self.hits.size <= count:
            return self
        kept = np.lexsort((-newest_rank[self.donor], -self.hits))[:count]
        return Diagonals(self.donor[kept], self.shift[kept], self.first[kept], self.last[kept], self.hits[kept])


def verified_runs(
    query: TokenIds,
    arena: TokenIds,
    donor_start: Ints,
    donor_length: Ints,
    diagonals: Diagonals,
    *,
    gram: int,
    margin: int,
    min_run: int,
    max_compared: int,
) -> list[Run]:
    """Maximal runs of at least ``min_run`` equal tokens along the diagonals, compared token by token.

    Each diagonal is compared from ``margin`` before its first hit to ``margin`` after its last; a run still unbroken
    there is followed further. All diagonals are compared in one pass over at most ``max_compared`` tokens.
    """
    low = np.maximum(np.maximum(diagonals.first - margin, -diagonals.shift), 0)
    highest = np.minimum(query.size, donor_length[diagonals.donor] - diagonals.shift)
    high = np.minimum(diagonals.last + gram + margin, highest)
    # One slot more per diagonal, always unequal, keeps the runs of neighbours apart.
    ends = np.cumsum(high - low + 1)
    within = int(np.searchsorted(ends, max_compared, side="right")) or 1
    low, high, ends = low[:within], high[:within], ends[:within]
    if not low.size:
        return []
    begins = ends - (high - low + 1)
    at = np.arange(ends[-1]) + np.repeat(low - begins, high - low + 1)
    base = donor_start[diagonals.donor[:within]] + diagonals.shift[:within]
    equal = np.take(query, at, mode="clip") == np.take(arena, at + np.repeat(base, high - low + 1), mode="clip")
    equal[ends - 1] = False

    flips = np.flatnonzero(equal[1:] != equal[:-1]) + 1
    if equal[0]:
        flips = np.insert(flips, 0, 0)
    run_begin, run_end = flips[0::2], flips[1::2]
    which = np.searchsorted(ends, run_begin, side="right")
    touches_edge = (run_begin == begins[which]) | (run_end == ends[which] - 1)
    kept = np.flatnonzero((run_end - run_begin >= min_run) | touches_edge)
    runs: list[Run] = []
    for begin, end, d in zip(run_begin[kept].tolist(), run_end[kept].tolist(), which[kept].tolist(), strict=True):
        start = int(at[begin])
        stop = start + end - begin
        offset = int(base[d])
        floor = max(0, -int(diagonals.shift[d]))
        if start == low[d]:
            start = _follow_back(query, arena, offset, start, floor)
        if stop == high[d]:
            stop = _follow_on(query, arena, offset, stop, int(highest[d]))
        if stop - start >= min_run:
            runs.append(Run(start, stop, int(diagonals.donor[d]), start + int(diagonals.shift[d])))
    return runs


def _follow_on(query: TokenIds, arena: TokenIds, offset: int, stop: int, limit: int) -> int:
    """The end of the run that is unbroken up to ``stop``, not beyond ``limit``."""
    stride = 64
    while stop < limit:
        reach = min(limit, stop + stride)
        unequal = np.flatnonzero(query[stop:reach] != arena[offset + stop : offset + reach])
        if unequal.size:
            return stop + int(unequal[0])
        stop, stride = reach, stride * 4
    return stop


def _follow_back(query: TokenIds, arena: TokenIds, offset: int, start: int, limit: int) -> int:
    """The start of the run that is unbroken from ``start`` on, not before ``limit``."""
    stride = 64
    while start > limit:
        reach = max(limit, start - stride)
        unequal = np.flatnonzero(query[reach:start] != arena[offset + reach : offset + start])
        if unequal.size:
            return reach + int(unequal[-1]) + 1
        start, stride = reach, stride * 4
    return start
