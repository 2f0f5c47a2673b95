"""From fingerprint hits to verified, maximal runs of equal tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from semblend_core.contract import TokenIds

Ints = npt.NDArray[np.int64]


WIDEST_SPACE = 256
"""Most tokens between two hits of one diagonal."""


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
    """Parts of lines on which fingerprints agree: donor position = query position + ``shift``."""

    donor: Ints
    shift: Ints
    first: Ints
    """Lowest query position with a hit."""
    last: Ints
    """Highest query position with a hit."""
    hits: Ints

    @classmethod
    def of(cls, query: Ints, donor: Ints, donor_position: Ints) -> Diagonals:
        """Group hits, at least one, by donor and shift; ``query`` ascends. Hits far apart are diagonals of their own.

        Inside a run hits follow each other closely, so a wide space between two is most likely no part of one;
        comparing it would be wasted on donors that share only islands with the prompt.
        """
        shift = donor_position - query
        key = cls.lines(query, donor, donor_position)
        order = key.argsort(kind="stable")
        ordered, by_key = key[order], query[order]
        first = np.empty(key.size, np.bool_)
        first[0] = True
        first[1:] = (ordered[1:] != ordered[:-1]) | (by_key[1:] - by_key[:-1] > WIDEST_SPACE)
        starts = first.nonzero()[0]
        ends = np.empty_like(starts)
        ends[:-1], ends[-1] = starts[1:], key.size
        heads = order[starts]
        return cls(donor[heads], shift[heads], by_key[starts], by_key[ends - 1], ends - starts)

    @staticmethod
    def lines(query: Ints, donor: Ints, donor_position: Ints) -> Ints:
        """Hits on one line have the same sortable word: 31 bits of donor above 32 of shift."""
        return (donor << 32) + (donor_position - query + (1 << 31))  # Positions are below 2**31, so shifts fit.

    @classmethod
    def of_single_hits(cls, query: Ints, donor: Ints, donor_position: Ints) -> Diagonals:
        """Each hit as a diagonal of its own."""
        return cls(donor, donor_position - query, query, query, np.ones_like(query))

    def strongest(self, count: int, recency: Ints) -> Diagonals:
        """The ``count`` diagonals with most hits, newer donors first among equals."""
        if self.hits.size == 1:
            return self
        return self.take(np.lexsort((-recency[self.donor], -self.hits))[:count])

    def take(self, which: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Diagonals:
        return Diagonals(self.donor[which], self.shift[which], self.first[which], self.last[which], self.hits[which])


@dataclass(frozen=True, slots=True)
class DonorColumns:
    """What verification needs to know of donors, by the index's number for them."""

    arena: TokenIds
    start: Ints
    length: Ints
    serial: Ints


def run_along(
    query: TokenIds, donors: DonorColumns, diagonals: Diagonals, i: int, *, gram: int, margin: int
) -> list[Run]:
    """What ``verified_runs`` gives for one diagonal, compared as plain slices."""
    donor, shift = int(diagonals.donor[i]), int(diagonals.shift[i])
    floor, ceiling = max(0, -shift), min(int(query.size), int(donors.length[donor]) - shift)
    first, hits_end = int(diagonals.first[i]), int(diagonals.last[i]) + gram
    low, high = max(floor, first - margin), min(ceiling, hits_end + margin)
    base = int(donors.start[donor]) + shift
    equal = np.zeros(high - low + 2, np.bool_)  # Unequal before and after, so that runs begin and end inside.
    np.equal(query[low:high], donors.arena[base + low : base + high], out=equal[1:-1])
    flips = (equal[1:] != equal[:-1]).nonzero()[0] + low
    begins, ends = flips[0::2], flips[1::2]
    with_hit = (ends - begins >= gram) & (ends > first) & (begins < hits_end)
    serial = int(donors.serial[donor])
    runs: list[Run] = []
    for start, stop in zip(begins[with_hit].tolist(), ends[with_hit].tolist(), strict=True):
        if start == low:
            start = _follow_back(query, donors.arena, base, start, floor)
        if stop == high:
            stop = _follow_on(query, donors.arena, base, stop, ceiling)
        runs.append(Run(start, stop, serial, start + shift))
    return runs


def verified_runs(
    query: TokenIds,
    donors: DonorColumns,
    diagonals: Diagonals,
    *,
    gram: int,
    margin: int,
    max_compared: int,
) -> list[Run]:
    """Maximal runs of equal tokens, a k-gram long at least, along the diagonals, compared token by token.

    Each diagonal is compared from ``margin`` before its first hit to ``margin`` after its last; a run still unbroken
    there is followed further, and one without a hit is left out: it is chance, or found by hits of its own. All are
    compared in one pass, in their order, as far as ``max_compared`` tokens go.
    """
    low = np.maximum(np.maximum(diagonals.first - margin, -diagonals.shift), 0)
    highest = np.minimum(query.size, donors.length[diagonals.donor] - diagonals.shift)
    high = np.minimum(diagonals.last + gram + margin, highest)
    # One slot more per diagonal, always unequal, keeps the runs of neighbours apart.
    ends = np.cumsum(high - low + 1)
    if not ends.size:
        return []
    within = max(1, int(np.searchsorted(ends, max_compared, side="right")))
    low, high, ends = low[:within], high[:within], ends[:within]
    sizes = high - low + 1
    begins = ends - sizes
    at = np.arange(ends[-1]) + np.repeat(low - begins, sizes)
    base = donors.start[diagonals.donor[:within]] + diagonals.shift[:within]
    there = donors.arena.take(at + np.repeat(base, sizes), mode="clip")
    equal = np.zeros(at.size + 1, np.bool_)
    np.equal(query.take(at, mode="clip"), there, out=equal[1:])
    equal[ends] = False

    flips = (equal[1:] != equal[:-1]).nonzero()[0]
    long_enough = flips[1::2] - flips[0::2] >= gram
    run_begin, run_end = flips[0::2][long_enough], flips[1::2][long_enough]
    which = np.searchsorted(ends, run_begin, side="right")
    start = at[run_begin]
    stop = start + (run_end - run_begin)
    with_hit = (stop > diagonals.first[which]) & (start < diagonals.last[which] + gram)
    which, start, stop = which[with_hit], start[with_hit], stop[with_hit]
    unbroken = ((start == low[which]) & (start > np.maximum(0, -diagonals.shift[which]))) | (
        (stop == high[which]) & (stop < highest[which])
    )
    for i in unbroken.nonzero()[0].tolist():
        d = int(which[i])
        floor = max(0, -int(diagonals.shift[d]))
        start[i] = _follow_back(query, donors.arena, int(base[d]), int(start[i]), floor)
        stop[i] = _follow_on(query, donors.arena, int(base[d]), int(stop[i]), int(highest[d]))

    serial = donors.serial[diagonals.donor[which]]
    columns = (start, stop, serial, start + diagonals.shift[which])
    return [Run(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _follow_on(query: TokenIds, arena: TokenIds, offset: int, stop: int, limit: int) -> int:
    """The end of the run that is unbroken up to ``stop``, not beyond ``limit``."""
    stride = 64
    while stop < limit:
        reach = min(limit, stop + stride)
        unequal = (query[stop:reach] != arena[offset + stop : offset + reach]).nonzero()[0]
        if unequal.size:
            return stop + int(unequal[0])
        stop, stride = reach, stride * 4
    return stop


def _follow_back(query: TokenIds, arena: TokenIds, offset: int, start: int, limit: int) -> int:
    """The start of the run that is unbroken from ``start`` on, not before ``limit``."""
    stride = 64
    while start > limit:
        reach = max(limit, start - stride)
        unequal = (query[reach:start] != arena[offset + reach : offset + start]).nonzero()[0]
        if unequal.size:
            return reach + int(unequal[-1]) + 1
        start, stride = reach, stride * 4
    return start
