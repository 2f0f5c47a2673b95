"""Policies that ask the engine which tokens matter before they choose. Every probe is charged to the budget."""

from __future__ import annotations

import math

import numpy as np

from semblend_core.recompute.policy import Probe, RecomputePolicy, Selection, best, first_of_spans
from semblend_core.recompute.reuse import Reuse

ATTENTION_DEPTH = (0.5, 0.7)
"""Layers whose question attention is scored, as shares of depth. Earlier ones choose worse, later ones cost more."""


class KVDeviation(RecomputePolicy):
    """The tokens whose V changes most in an early layer, computed for all of them so far (CacheBlend's rule)."""

    name = "kv_deviation"
    needs_probe = True

    def __init__(self, layers: int = 2) -> None:
        if layers < 2:
            raise ValueError(f"layers must be at least 2, since V of the first never changes, got {layers}")
        self._layers = layers

    def select(self, reuse: Reuse, tokens: float, probe: Probe | None, block: int) -> Selection:
        assert probe is not None
        price = probe.cost(min(self._layers, probe.layers - 1))
        cost = reuse.tokens * price
        if cost > tokens:
            return Selection(np.zeros_like(reuse.reused))  # The probe alone would cost more than there is.
        values = probe.kv_deviation(min(self._layers, probe.layers - 1))
        # What the probe computed of a token is not computed again.
        chosen = best(values, reuse.reused, int((tokens - cost) / (1 - price)), block)
        return Selection(chosen, probe_tokens=cost, saved_tokens=float(chosen.sum()) * price)


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
        first = int(self._depth[0] * probe.layers)
        layers = range(first, max(first + 1, math.ceil(self._depth[1] * probe.layers)))
        left = tokens - int(reuse.gaps.sum()) * probe.cost(layers.stop)
        if left <= 0:
            seams = first_of_spans(reuse, reuse.heads(self._seam), tokens, block)
            return Selection(seams, seams)  # The probe alone would cost more than there is.
        values = probe.question_attention(layers)
        # Short spans would spend everything on seams; what the question attends to is worth more than they are.
        seams = first_of_spans(reuse, reuse.heads(self._seam), left / 2, block)
        attended = best(values, reuse.reused & ~seams, int(left - seams.sum()), block)
        return Selection(seams | attended, seams, probe_tokens=tokens - left)
