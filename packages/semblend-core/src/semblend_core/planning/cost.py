"""Does reuse pay? Predicted from measured costs, never from a guess."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from semblend_core.contract import Plan
from semblend_core.settings import Settings


@dataclass(frozen=True, slots=True)
class CostModel:
    """What the engine's steps cost, in microseconds, as measured on the machine and model in use."""

    prefill_us_per_token: float
    """Time to compute one token at position 0."""
    copy_us_per_token: float
    """Time to relocate one token's KV, all layers."""
    overhead_us: float = 0.0
    """Fixed time of a request with reuse: lookup, bookkeeping, launches."""
    prefill_us_per_token_and_position: float = 0.0
    """What a token's prefill costs more per token before it: attention's share."""
    recompute_share: float = 0.0
    """Share of the reused tokens that a recompute policy will compute after all."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"cost model: {name} must be a number of at least 0, got {value}")
        if self.recompute_share > 1:
            raise ValueError(f"cost model: recompute_share is a share in [0, 1], got {self.recompute_share}")

    @classmethod
    def from_settings(cls, settings: Settings) -> CostModel | None:
        """The model that the settings describe, or None while prefill or copy cost is not calibrated."""
        if settings.prefill_us_per_token is None or settings.copy_us_per_token is None:
            return None
        return cls(
            prefill_us_per_token=settings.prefill_us_per_token,
            copy_us_per_token=settings.copy_us_per_token,
            overhead_us=settings.reuse_overhead_us or 0.0,
            recompute_share=settings.recompute_share or 0.0,
        )

    @classmethod
    def fit(
        cls,
        prefills: Sequence[tuple[int, float]],
        copies: Sequence[tuple[int, float]],
        recompute_share: float = 0.0,
    ) -> CostModel:
        """Least squares over measured (tokens, microseconds) of whole prefills and of whole relocations."""
        if any(len({length for length, _ in measured}) < 2 for measured in (prefills, copies)):
            raise ValueError("calibration needs at least two prefills and two copies of different lengths")
        lengths, times = np.array(prefills, float).T
        linear, quadratic = _non_negative_fit(lengths, lengths**2 / 2, times)
        copied, copy_times = np.array(copies, float).T
        per_token, overhead = _non_negative_fit(copied, np.ones_like(copied), copy_times)
        return cls(linear, per_token, overhead, quadratic, recompute_share)

    def prefill_us(self, start: int, end: int) -> float:
        """Predicted time to compute positions [start, end)."""
        return (
            self.prefill_us_per_token * (end - start) + self.prefill_us_per_token_and_position * (end**2 - start**2) / 2
        )

    def gain_us(self, plan: Plan) -> float:
        """Predicted time saved by ``plan``; negative where reuse costs more than it saves."""
        cold = self.prefill_us(plan.exact_prefix_tokens, plan.prompt_tokens)
        spared = cold - sum(self.prefill_us(row.start, row.end) for row in plan.rows)
        relocated = sum(span.length for span in plan.spans)
        return (1 - self.recompute_share) * spared - self.copy_us_per_token * relocated - self.overhead_us


def _non_negative_fit(first: np.ndarray, second: np.ndarray, times: np.ndarray) -> tuple[float, float]:
    """Coefficients of ``times = a * first + b * second``, both at least 0."""
    (a, b), *_ = np.linalg.lstsq(np.column_stack([first, second]), times, rcond=None)
    if b < 0:
        return max(0.0, float(first @ times / (first @ first))), 0.0
    if a < 0:
        return 0.0, max(0.0, float(second @ times / (second @ second)))
    return float(a), float(b)
