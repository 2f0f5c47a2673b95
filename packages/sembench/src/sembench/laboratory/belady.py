"""The best that any policy could have done, knowing the future. With bypass: what is not worth a place stays out.

Whoever is wanted again latest goes first. That is the optimum where every block has one size and one worth. For blocks
of different sizes it is made one by letting a block be held in part: its tokens are wanted again at the same time, and
each has the size 1. No policy that holds blocks whole can then save more tokens. For other worths (a hit is a hit,
whatever its size; a token late in a prompt costs more) the bound comes from linear programming, see ``dual_bound``.

Prefix caches need nothing further. A chained key is wanted only together with its parent, so a parent is never wanted
later than its children: children go first of themselves, and what is held is always a whole beginning of a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sembench.laboratory.caches import Semantics, Unit
from sembench.laboratory.latency import LatencyModel
from sembench.laboratory.requests import CacheRequest, chained

Vector: TypeAlias = npt.NDArray[np.float64]
NEVER = 1 << 62
DUAL_STEPS = 400


@dataclass(frozen=True)
class Accesses:
    """All block accesses of a trace in order, with when each block comes next.

    Accesses of one moment see the same cache, and between two moments it may change what it holds. A block that a
    prompt holds twice is one access of its moment, with the worth of both.
    """

    keys: list[int]
    moments: npt.NDArray[np.int64]
    sizes: Vector
    """In the budget's unit."""
    hits: Vector
    tokens: Vector
    saved_ms: Vector
    following: npt.NDArray[np.int64]
    """Index of the next access to the same block, or NEVER."""

    @classmethod
    def of(
        cls, requests: Sequence[CacheRequest], semantics: Semantics, latency: LatencyModel, unit: Unit = "tokens"
    ) -> Accesses:
        rows: list[_Access] = []
        for number, request in enumerate(requests):
            keys = chained(request.keys) if semantics == "prefix" else request.keys
            seen: dict[int, _Access] = {}
            position = 0
            for key, tokens in zip(keys, request.tokens, strict=True):
                saved_ms = latency.saved_ms(position, tokens)
                position += tokens
                if semantics != "block" and key in seen:
                    seen[key].add(tokens, saved_ms)
                    continue
                moment = len(rows) if semantics == "block" else number
                seen[key] = _Access(key, moment, tokens if unit == "tokens" else 1, 1, tokens, saved_ms)
                rows.append(seen[key])
        return cls(
            [row.key for row in rows],
            np.array([row.moment for row in rows], np.int64),
            np.array([row.size for row in rows], np.float64),
            np.array([row.hits for row in rows], np.float64),
            np.array([row.tokens for row in rows], np.float64),
            np.array([row.saved_ms for row in rows], np.float64),
            _following([row.key for row in rows]),
        )


@dataclass(slots=True)
class _Access:
    key: int
    moment: int
    size: int
    hits: int
    tokens: int
    saved_ms: float

    def add(self, tokens: int, saved_ms: float) -> None:
        self.hits += 1
        self.tokens += tokens
        self.saved_ms += saved_ms


def _following(keys: Sequence[int]) -> npt.NDArray[np.int64]:
    following = np.full(len(keys), NEVER, np.int64)
    coming: dict[int, int] = {}
    for index in range(len(keys) - 1, -1, -1):
        following[index] = coming.get(keys[index], NEVER)
        coming[keys[index]] = index
    return following


def farthest_first(accesses: Accesses, capacity: int) -> Vector:
    """By access the share of its block that is held when it comes. Exact where worth goes with size."""
    shares = np.zeros(len(accesses.keys))
    held: dict[int, tuple[int, int]] = {}
    """Key to when it is wanted next and how much of it is held."""
    heap: list[tuple[int, int]] = []
    total = 0
    keys, sizes = accesses.keys, accesses.sizes.astype(np.int64).tolist()
    following, moments = accesses.following.tolist(), accesses.moments.tolist()
    for index, key in enumerate(keys):
        size = sizes[index]
        known = held.get(key)
        if known is not None:
            shares[index] = min(1.0, known[1] / size)
        coming = following[index]
        total -= known[1] if known is not None else 0
        if coming == NEVER:
            held.pop(key, None)
        else:
            held[key] = (coming, size)
            total += size
            heappush(heap, (-coming, key))
        if index + 1 == len(keys) or moments[index + 1] != moments[index]:
            total = _trim(held, heap, total, capacity)
    return shares


def _trim(held: dict[int, tuple[int, int]], heap: list[tuple[int, int]], total: int, capacity: int) -> int:
    while total > capacity:
        coming, key = heap[0]
        known = held.get(key)
        if known is None or known[0] != -coming:
            heappop(heap)
        elif total - known[1] >= capacity:
            heappop(heap)
            del held[key]
            total -= known[1]
        else:
            held[key] = (known[0], known[1] - (total - capacity))
            total = capacity
    return total


def dual_bound(accesses: Accesses, capacity: int, worth: Vector, steps: int = DUAL_STEPS) -> float:
    """An upper bound of the worth of all hits, whatever a hit is worth.

    Holding a block until it is wanted again takes its size at every moment in between. With a price for room at each
    moment, whoever pays more than the hit is worth stays out; what is left, plus the price of all room there is, is at
    least the optimum, for any prices (weak duality). The prices are improved by subgradient steps, the best is kept.
    """
    again = accesses.following < NEVER
    first_at = accesses.moments[again]
    next_at = accesses.moments[accesses.following[again]]
    # The access that is served is the next one; its worth counts.
    gains, sizes = worth[accesses.following[again]], accesses.sizes[again]
    everything = float(gains.sum())
    if not gains.size or capacity <= 0:
        return 0.0
    moments = int(accesses.moments[-1]) + 1
    prices = np.zeros(moments)
    best = everything
    scale = float(np.median(gains / np.maximum(1.0, sizes * (next_at - first_at))))
    for step in range(1, steps + 1):
        paid = np.concatenate(([0.0], np.cumsum(prices)))
        left = gains - sizes * (paid[next_at] - paid[first_at])
        taken = left > 0
        best = min(best, capacity * float(prices.sum()) + float(left[taken].sum()))
        change = np.zeros(moments + 1)
        np.add.at(change, first_at[taken], sizes[taken])
        np.add.at(change, next_at[taken], -sizes[taken])
        beyond = np.cumsum(change[:-1]) - capacity
        prices = np.maximum(0.0, prices + 2 * scale / np.sqrt(step) * beyond / max(1.0, float(np.abs(beyond).max())))
    return best


@dataclass(frozen=True)
class Bound:
    """What no policy can exceed, each figure on its own."""

    block_hits: float
    cached_tokens: float
    saved_ms: float


def bound_of(accesses: Accesses, capacity: int) -> Bound:
    shares = farthest_first(accesses, capacity)

    def most(worth: Vector) -> float:
        density = worth / accesses.sizes
        if not worth.size or np.allclose(density, density[0], rtol=1e-9):
            return float((shares * worth).sum())
        return dual_bound(accesses, capacity, worth)

    return Bound(most(accesses.hits), most(accesses.tokens), most(accesses.saved_ms))
