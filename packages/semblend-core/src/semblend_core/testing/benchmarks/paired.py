"""Two ways to serve the same kind of request, measured in pairs: what one costs of the other, and how sure that is."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """An estimate with the ends of its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def bootstrapped(
    values: Sequence[float] | Sequence[Sequence[float]],
    estimate: Callable[..., np.ndarray] = np.median,
    seed: int = 1,
) -> Interval:
    """``estimate`` of ``values``, and of resamples of them. Values that were measured together are drawn together."""
    measured = np.asarray(values, float)
    drawn = np.random.default_rng(seed).integers(0, len(measured), (RESAMPLES, len(measured)))
    low, high = np.percentile(estimate(measured[drawn].reshape(RESAMPLES, -1), axis=1), [2.5, 97.5])
    return Interval(float(estimate(measured)), float(low), float(high))


@dataclass(frozen=True)
class Pairs:
    """Times of both arms; the same place is one pair."""

    ours: list[float]
    theirs: list[float]

    def ratio(self) -> Interval:
        """The median of the pairs' ratios: what disturbs the machine for a while falls on both halves of a pair."""
        return bootstrapped([ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True)])

    def medians(self) -> tuple[float, float]:
        return statistics.median(self.ours), statistics.median(self.theirs)
