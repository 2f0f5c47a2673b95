"""The policies: controls that bound what can be had, seams, and those that look before they choose."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np

from semblend_core.recompute.picking import best, first_of_spans, whole_blocks
from semblend_core.recompute.policy import Pooling, Probe, RecomputePolicy, Selection
from semblend_core.recompute.reuse import Mask, Reuse, tokens_in


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


class SeamHead(RecomputePolicy):
    """The first tokens of each span (as EPIC does): they carry the donor's attention sinks.

    ``tokens`` None: as many as the budget allows, the same for each span.
    """

    name = "seam_head"

    def __init__(self, tokens: int | None = None) -> None:
        if tokens is not None and tokens < 1:
            raise ValueError(f"a seam has at least one token, got {tokens}")
        self._tokens = tokens

    @property
    def longest_seam(self) -> int | None:
        return self._tokens

    def spending(self, times: float) -> RecomputePolicy:
        return self if self._tokens is None else SeamHead(round(times * self._tokens))

    def select(self, reuse: Reuse, tokens: float, probe: Probe | None, block: int) -> Selection:
        wanted = reuse.plan.prompt_tokens if self._tokens is None else self._tokens
        seams = first_of_spans(reuse, reuse.heads(wanted), tokens, block)
        return Selection(seams, seams)


class SeamAndTail(RecomputePolicy):
    """A long seam where the document begins, short ones behind edits, and the end of the prompt.

    For one document behind a new instruction. What changed stands in front of the seam, and what generation goes on
    from is the tail, which a span may reach into when the question is the same.
    """

    name = "seam_and_tail"

    def __init__(self, seam: int = 64, after_edit: int = 8, tail: int = 32) -> None:
        if min(seam, after_edit, tail) < 1:
            raise ValueError(f"seam, after_edit and tail are at least 1, got {seam}, {after_edit} and {tail}")
        self._seam, self._after_edit, self._tail = seam, after_edit, tail

    @property
    def longest_seam(self) -> int:
        return self._seam

    def spending(self, times: float) -> RecomputePolicy:
        return SeamAndTail(*(round(times * tokens) for tokens in (self._seam, self._after_edit, self._tail)))

    def select(self, reuse: Reuse, tokens: float, probe: Probe | None, block: int) -> Selection:
        tail = whole_blocks(reuse, reuse.tail(min(self._tail, int(tokens) // block * block)), block)
        left = tokens - tokens_in(tail)
        seams = first_of_spans(reuse, reuse.heads(self._seam, self._after_edit) & ~tail, left, block) & ~tail
        return Selection(seams | tail, seams)


class SharedSink(RecomputePolicy):
    """Only what was computed at the front of its donor, where the attention sinks are; the rest is taken as it is.

    For passages that were captured behind one shared front (a system prompt, say), which is then their common sink.
    """

    name = "shared_sink"

    def __init__(self, sink: int = 16) -> None:
        if sink < 1:
            raise ValueError(f"a sink has at least one token, got {sink}")
        self._sink = sink

    def select(self, reuse: Reuse, tokens: float, probe: Probe | None, block: int) -> Selection:
        return Selection(first_of_spans(reuse, self._at_donor_fronts(reuse), tokens, block))

    def _at_donor_fronts(self, reuse: Reuse) -> Mask:
        mask = reuse.heads(0)
        for span in reuse.plan.spans:
            count = min(span.length, max(0, self._sink - span.donor_start))
            mask[span.target_start : span.target_start + count] = True
        return mask & reuse.reused


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
        return Selection(chosen, probe_tokens=cost, saved_tokens=tokens_in(chosen) * price)


class QueryAttention(RecomputePolicy):
    """The tokens that the question attends to, at true positions; the seams first, where ``seam`` asks for them.

    ``pooling``: a token counts by what all heads of all words of the question pay to it on average ("mean"), or by
    the most that each head pays to it from any word, added up ("peaks").
    """

    needs_probe = True

    def __init__(self, seam: int = 0, depth: tuple[float, float] = ATTENTION_DEPTH, pooling: Pooling = "mean") -> None:
        first, last = depth
        if seam < 0 or not 0 <= first < last <= 1:
            raise ValueError(f"seam is at least 0 and depth a part of [0, 1], got {seam} and {depth}")
        if pooling not in get_args(Pooling):
            raise ValueError(f"pooling is one of {get_args(Pooling)}, got {pooling!r}")
        self._seam, self._depth, self._pooling = seam, depth, pooling

    @property
    def name(self) -> str:
        scored = "query_attention" if self._pooling == "mean" else "attention_peaks"
        return f"seam_head+{scored}" if self._seam else scored

    def select(self, reuse: Reuse, tokens: float, probe: Probe | None, block: int) -> Selection:
        assert probe is not None
        first = int(self._depth[0] * probe.layers)
        layers = range(first, max(first + 1, math.ceil(self._depth[1] * probe.layers)))
        left = tokens - tokens_in(reuse.gaps) * probe.cost(layers.stop)
        if left <= 0:
            seams = first_of_spans(reuse, reuse.heads(self._seam), tokens, block)
            return Selection(seams, seams)  # The probe alone would cost more than there is.
        values = probe.question_attention(layers, self._pooling)
        # Short spans would spend everything on seams; what the question attends to is worth more than they are.
        seams = first_of_spans(reuse, reuse.heads(self._seam), left / 2, block)
        attended = best(values, reuse.reused & ~seams, int(left - tokens_in(seams)), block)
        return Selection(seams | attended, seams, probe_tokens=tokens - left)
