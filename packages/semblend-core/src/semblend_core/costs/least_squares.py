"""Least squares over steps: costs of at least 0, and whether sums that somebody kept can be of steps at all."""

from __future__ import annotations

import numpy as np

from semblend_core.costs.steps import Vector

LONGEST = 1e15
"""Nothing that is kept of steps is as large, in microseconds or whatever else it counts."""
MOST_REMEMBERED = 1e3
"""Root of the number of steps, generously: older ones are forgotten."""


def are_sums_of_steps(known: Vector, seen: Vector) -> bool:
    """Whether these are sums over steps: ``known`` of squares and products, ``seen`` of the same features."""
    if not (np.isfinite(known).all() and np.isfinite(seen).all() and np.abs(known).max() < LONGEST):
        return False
    squares = np.diag(known)
    scale = np.sqrt(np.where(squares > 0, squares, 1.0))
    scaled = known / np.outer(scale, scale)
    is_symmetric = np.abs(scaled - scaled.T).max() < 1e-6
    is_of_squares = squares.min() >= 0 and is_symmetric and np.linalg.eigvalsh(scaled).min() > -1e-6
    return bool(is_of_squares and (np.abs(seen / scale) < np.where(squares > 0, MOST_REMEMBERED, 1e-9)).all())


def non_negative(precision: Vector, wanted: Vector, free: list[int]) -> tuple[Vector, list[int]]:
    """Where the quadratic form is least among costs of at least 0; and the features whose cost is above 0.

    ``free``: the same from the last time, to begin with.
    """
    size = wanted.size
    scale = np.sqrt(np.diag(precision))
    scaled, target = precision / np.outer(scale, scale), wanted / scale
    solution = np.zeros(size)
    for _ in range(3 * size):  # In theory it may go in circles.
        solution[:] = 0.0
        if free:
            solution[free] = np.linalg.solve(scaled[np.ix_(free, free)], target[free])
        worst = int(solution.argmin())
        if solution[worst] < 0:
            free = [each for each in free if each != worst]
            continue
        slope = target - scaled @ solution
        slope[free] = 0.0
        best = int(slope.argmax())
        if slope[best] <= 1e-9:
            break
        free = [*free, best]
    return np.maximum(solution, 0.0) / scale, free
