"""Medians, percentiles and their bootstrap intervals. Nothing to measure gives None, never 0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sembench.schema import Interval

CONFIDENCE = 95.0
_DRAWS_AT_ONCE = 4_000_000
"""Most values drawn at a time: bounds the memory of a bootstrap over many pairs."""


def mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return float(np.mean(known)) if known else None


def median(values: Sequence[float]) -> float | None:
    return percentile(values, 50.0)


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear between the two nearest values; ``percent`` is in [0, 100]."""
    if not 0 <= percent <= 100:
        raise ValueError(f"a percentile is between 0 and 100, got {percent}")
    return float(np.percentile(values, percent)) if len(values) else None


def bootstrap_median(values: Sequence[float], resamples: int = 2000, seed: int = 0) -> Interval:
    """The median and its 95% interval.

    A value belongs to one pair (a ratio or a difference of its two arms), so that drawing values draws whole pairs:
    this is the paired bootstrap. Same values, same seed, same interval. One value has a median and no interval.
    """
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    sample = np.asarray(values, dtype=np.float64)
    if not np.isfinite(sample).all():
        raise ValueError("a bootstrap needs finite values")
    if sample.size < 2:
        return Interval(value=median(values), n=sample.size)
    low, high = np.percentile(_resampled_medians(sample, resamples, seed), _tails())
    return Interval(value=median(values), low=float(low), high=float(high), n=sample.size)


def bootstrap_mean(groups: Sequence[Sequence[float]], resamples: int = 2000, seed: int = 0) -> Interval:
    """The mean of all values and its 95% interval, drawing whole groups: values of one document depend on each other.

    One group has a mean and no interval.
    """
    totals = np.array([sum(group) for group in groups], dtype=np.float64)
    sizes = np.array([len(group) for group in groups], dtype=np.float64)
    count = int(sizes.sum())
    if count == 0:
        return Interval(value=None, n=0)
    value = float(totals.sum() / count)
    if len(groups) < 2:
        return Interval(value=value, n=count)
    drawn = np.random.default_rng(seed).integers(0, len(groups), (resamples, len(groups)))
    low, high = np.percentile(totals[drawn].sum(axis=1) / sizes[drawn].sum(axis=1), _tails())
    return Interval(value=value, low=float(low), high=float(high), n=count)


def _resampled_medians(sample: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    source = np.random.default_rng(seed)
    rows = max(1, _DRAWS_AT_ONCE // sample.size)
    parts = []
    for done in range(0, resamples, rows):
        drawn = source.integers(0, sample.size, (min(rows, resamples - done), sample.size))
        parts.append(np.median(sample[drawn], axis=1))
    return np.concatenate(parts)


def _tails() -> tuple[float, float]:
    outside = (100.0 - CONFIDENCE) / 2
    return outside, 100.0 - outside
