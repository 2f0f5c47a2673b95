"""Means with paired bootstrap intervals over cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_DRAWS = 2000


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95% of the bootstrap means."""
    data = np.asarray(values)
    means = data[_draws(data.size)].mean(axis=1)
    return float(np.percentile(means, 2.5)), float(np.percentile(means, 97.5))


def ratio_of_means(values: Sequence[float], others: Sequence[float]) -> tuple[float, float, float]:
    """Mean of ``values`` by mean of ``others``, case by case the same, and its 95% interval."""
    one, other = np.asarray(values), np.asarray(others)
    drawn = _draws(one.size)
    ratios = one[drawn].mean(axis=1) / np.maximum(other[drawn].mean(axis=1), 1e-12)
    ratio = one.mean() / max(other.mean(), 1e-12)
    return float(ratio), float(np.percentile(ratios, 2.5)), float(np.percentile(ratios, 97.5))


def summarise(
    measured: Sequence[dict[str, Any]], rotate_only: Sequence[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """The figures of one arm in one cell. ``rotate_only``: the same cases with nothing recomputed."""
    kl = [each["kl"] for each in measured]
    figures: dict[str, Any] = {"n": len(measured), "kl": mean(kl), "kl_interval": interval(kl)}
    figures["kl_max"] = max(each["kl_max"] for each in measured)
    for name in ("top1", "equal"):
        values = [each[name] for each in measured]
        figures[name], figures[f"{name}_interval"] = mean(values), interval(values)
    for name in ("ppl_ratio", "recompute", "flops_saved"):
        figures[name] = mean([each[name] for each in measured])
    timed = [each["ttft_ratio"] for each in measured if each["ttft_ratio"] is not None]
    figures["ttft_ratio"] = mean(timed) if timed else None
    if rotate_only is not None:
        ratio, low, high = ratio_of_means(kl, [each["kl"] for each in rotate_only])
        figures["kl_cut"], figures["kl_cut_interval"] = 1 - ratio, (1 - high, 1 - low)
    return figures


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _draws(size: int) -> np.ndarray:
    return np.random.default_rng(7).integers(0, size, (_DRAWS, size))
