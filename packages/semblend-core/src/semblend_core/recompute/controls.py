"""Policies that no engine should use, to measure the others against."""

from __future__ import annotations

import numpy as np

from semblend_core.recompute.policy import Probe, RecomputePolicy, Selection, best
from semblend_core.recompute.reuse import Reuse


class FullRecompute(RecomputePolicy):
    """Compute everything, whatever the budget: must equal a cold prefill."""

    name = "full_recompute"

    def select(self, reuse: Reuse, tokens: float, probe: Probe | None, block: int) -> Selection:
        return Selection(reuse.reused)


class RotateOnly(RecomputePolicy):
    """Compute nothing but the gaps."""

    name = "rotate_only"

    def select(self, reuse: Reuse, tokens: float, probe: Probe | None, block: int) -> Selection:
        return Selection(np.zeros_like(reuse.reused))


class Random(RecomputePolicy):
    """Any tokens: what the budget alone is worth. The same ones for the same ``seed`` and prompt length."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def select(self, reuse: Reuse, tokens: float, probe: Probe | None, block: int) -> Selection:
        values = np.random.default_rng([self._seed, reuse.reused.size]).random(reuse.reused.size)
        return Selection(best(values, reuse.reused, int(tokens), block))


class Oracle(RecomputePolicy):
    """The tokens that stray most where the answer will look: knows the cold KV and the answer."""

    name = "oracle"
    needs_probe = True

    def select(self, reuse: Reuse, tokens: float, probe: Probe | None, block: int) -> Selection:
        assert probe is not None
        return Selection(best(probe.true_deviation(), reuse.reused, int(tokens), block))
