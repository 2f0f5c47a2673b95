"""How much SemBlend's own objects hold, by place: what grows with traffic and never shrinks shows."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

BOUNDS_OF_BOOKS = (
    "semblend_core.donors.regret.MOST_GONE",
    "semblend_core.provider.open_requests.REMEMBERED_REPORTS",
    "semblend_core.serving.captures.MOST_ASKED_ONCE",
    "semblend_core.serving.donors.MOST_LOST",
    "semblend_core.serving.hot.MOST_LINEAGES",
    "semblend_core.serving.lineage.MOST_LINEAGES",
    "semblend_core.serving.namespaces.MOST_REMEMBERED",
)
"""How many requests, tenants and the like are remembered: a test that sets these low has all books full soon."""

_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), range, type)
_MANY = (Mapping, list, tuple, set, frozenset, deque)


def held_by(*roots: object) -> Counter[str]:
    """Items of every container, bytes of every array and characters of long texts, by class and attribute.

    Goes through objects of SemBlend's modules and plain containers. What belongs to an engine is the engine's care.
    """
    held: Counter[str] = Counter()
    seen: set[int] = set()
    open_ = [(type(root).__name__, root) for root in roots]
    while open_:
        place, value = open_.pop()
        if isinstance(value, str | bytes | bytearray) and len(value) > 1024:
            held[place] += len(value)
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, np.ndarray):
            held[place] += value.nbytes
        elif isinstance(value, _MANY):
            held[place] += len(value)
            items = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
            open_ += [(f"{place}[]", item) for item in list(items)]
        elif type(value).__module__.startswith("semblend"):
            open_ += [(f"{type(value).__name__}.{name}", part) for name, part in _parts(value)]
    return held


def grown(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """What of ``held_by`` is more than it may be when as much as possible was held ``before``; give it several times
    as much work in between."""

    def most(place: str, size: int) -> float:
        # Tables of the index double when they are half full, and tombstones count: once is no sign of a leak.
        return (2.5 if place.startswith("BucketTable") else 1.25) * size + 8

    sizes = {place: (before.get(place, 0), size) for place, size in after.items()}
    return {place: (then, now) for place, (then, now) in sizes.items() if now > most(place, then)}


def _parts(value: object) -> Iterator[tuple[str, Any]]:
    yield from vars(value).items() if hasattr(value, "__dict__") else ()
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name != "__dict__" and hasattr(value, name):
                yield name, getattr(value, name)
