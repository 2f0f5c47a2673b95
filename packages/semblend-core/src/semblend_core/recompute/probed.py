"""Policies that ask the engine which tokens matter before they choose. Every probe is charged to the budget."""

from __future__ import annotations

import numpy as np

from semblend_core.recompute.policy import Probe, RecomputePolicy, Selection, best, shortened
from semblend_core.recompute.reuse import Reuse

ATTENTION_DEPTH = (0.5, 0.7)
"""Layers whose question attention is scored, as shares of depth. Earlier ones choose worse, later ones cost more."""


class KVDeviation(RecomputePolicy):
    """The tokens whose V changes most in the first layers, computed for all of them (CacheBlend's rule)."""

    name = "kv_deviation"
    needs_probe = True

    def __init__(self, layers: int = 2) -> None:
        if layers < 1:
            raise ValueError(f"at least one layer is compared, got {layers}")
        self._layers = layers

    def select(self, reuse: Reuse, tokens: float, probe: Probe | None, block: int) -> Selection:
        assert probe is not None
        if reuse.tokens * self._layers > tokens * probe.layers:
            return Selection(np.zeros_like(reuse.reused))  # The probe alone would cost more than there is.
        scores = probe.kv_deviation(self._layers)
        left = tokens - scores.cost_tokens
        price = 1 - scores.layers_done / scores.layers
        count = max(0, int(left / price))
        saved = count * (1 - price)
        return Selection(
            best(scores.values, reuse.reused, count, block), probe_tokens=scores.cost_tokens, saved_tokens=saved
        )


class QueryAttention(RecomputePolicy):
    """The tokens that the question attends to, at true positions; the seams first, where ``seam`` asks for them."""

    needs_probe = True

    def __init__(self, seam: int = 0, depth: tuple[float, float] = ATTENTION_DEPTH) -> None:
        first, last = depth
        if seam < 0 or not 0 <= first < last <= 1:
            raise ValueError(f"seam is at least 0 and depth a part of [0, 1], got {seam} and {depth}")
        self._seam, self._depth = seam, depth

    @property
    def name(self) -> str:
        return "seam_head+query_attention" if self._seam else "query_attention"

    def select(self, reuse: Reuse, tokens: float, probe: Probe | None, block: int) -> Selection:
        assert probe is not None
        if reuse.gaps.sum() * self._depth[1] > tokens:
            seams = shortened(reuse.heads(self._seam), tokens)
            return Selection(seams, seams)  # The probe alone would cost more than there is.
        scores = probe.question_attention(*self._depth)
        left = tokens - scores.cost_tokens
        # Short spans would spend everything on seams; what the question attends to is worth more than they are.
        seams = shortened(reuse.heads(self._seam), left / 2) if self._seam else np.zeros_like(reuse.reused)
        attended = best(scores.values, reuse.reused & ~seams, int(left - seams.sum()), block)
        return Selection(seams | attended, seams, probe_tokens=scores.cost_tokens)
