"""Does reuse pay? By costs that the settings give, in place of those that the engine's steps tell."""

from __future__ import annotations

import math
from dataclasses import dataclass

from semblend_core.contract import Plan
from semblend_core.settings import Settings


@dataclass(frozen=True, slots=True)
class CostModel:
    """What reuse costs and spares, in microseconds, as somebody measured it for the machine and model in use."""

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
        """The model that the settings describe, or None while prefill or copy cost is not set."""
        if settings.prefill_us_per_token is None or settings.copy_us_per_token is None:
            return None
        return cls(
            prefill_us_per_token=settings.prefill_us_per_token,
            copy_us_per_token=settings.copy_us_per_token,
            overhead_us=settings.reuse_overhead_us or 0.0,
            recompute_share=settings.recompute_share or 0.0,
        )

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
