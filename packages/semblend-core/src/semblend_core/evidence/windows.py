"""Overlapping windows over a whole sequence."""

from __future__ import annotations


def sliding_windows(length: int, size: int, overlap: int) -> list[tuple[int, int]]:
    """``(start, end)`` runs covering ``[0, length)``, ``size`` long or all, sharing ``overlap`` or more.

    The last window ends with the sequence and is moved back to full size: a stub of a few tokens would embed
    as noise, and equal sizes batch without padding.
    """
    if not 0 <= overlap < size:
        raise ValueError(f"overlap must be in [0, size), got overlap {overlap} and size {size}")
    if length <= 0:
        return []
    if length <= size:
        return [(0, length)]
    starts = list(range(0, length - size, size - overlap))
    starts.append(length - size)
    return [(start, start + size) for start in starts]
