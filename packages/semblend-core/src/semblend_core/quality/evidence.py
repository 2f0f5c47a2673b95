"""Evidence that a mean lies below a bound, gathered one observation at a time and readable at any moment.

It is a bet. Whoever stakes a share of his money on "the next observation lies below the bound" grows rich only if the
mean does: at or above the bound each round is fair or worse, whatever the distribution. So money is evidence, and one
may look after every round. A bettor who has lost his stake begins anew with 1, so a long good time does not hide what
comes after it. At the bound the first time that such a bettor holds ``m`` comes after ``m`` rounds on average, or later
(Shin, Ramdas and Rinaldo, "E-detectors", 2022).
"""

from __future__ import annotations

STAKES = (0.05, 0.1, 0.2, 0.4, 0.8, 0.95)
"""Shares of the largest stake that no observation can ruin. Large ones notice a collapse, small ones a little lack."""
CLOSEST_TO_ONE = 0.999


class Evidence:
    """Of observations in [0, 1] whose mean is below ``bound``."""

    def __init__(self, bound: float) -> None:
        if not 0 <= bound <= 1:
            raise ValueError(f"bound is a mean of values in [0, 1], got {bound}")
        self._bound = min(bound, CLOSEST_TO_ONE)
        self._stakes = [share / (1 - self._bound) for share in STAKES]
        self._money = [1.0] * len(STAKES)
        self.observations = 0

    def add(self, value: float) -> None:
        if not 0 <= value <= 1:
            raise ValueError(f"an observation is in [0, 1], got {value}")
        self.observations += 1
        for at, stake in enumerate(self._stakes):
            self._money[at] = max(1.0, self._money[at]) * (1 + stake * (self._bound - value))

    @property
    def strength(self) -> float:
        """About how many observations it takes, on average, until chance alone makes it as strong. 1: none at all."""
        return sum(self._money) / len(self._money)
