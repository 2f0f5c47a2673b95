"""Policies whose rows follow from the shape of the plan alone: no probe, known before any forward."""

from __future__ import annotations

from semblend_core.recompute.policy import Probe, RecomputePolicy, Selection, first_of_spans, whole_blocks
from semblend_core.recompute.reuse import Mask, Reuse


class SeamHead(RecomputePolicy):
    """The first tokens of each span (as EPIC does): they carry the donor's attention sinks.

    ``tokens`` None: as many as the budget allows, the same for each span.
    """

    name = "seam_head"

    def __init__(self, tokens: int | None = None) -> None:
        if tokens is not None and tokens < 1:
            raise ValueError(f"a seam has at least one token, got {tokens}")
        self._tokens = tokens

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

    def select(self, reuse: Reuse, tokens: float, probe: Probe | None, block: int) -> Selection:
        tail = whole_blocks(reuse, reuse.tail(min(self._tail, int(tokens) // block * block)), block)
        left = tokens - int(tail.sum())
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
