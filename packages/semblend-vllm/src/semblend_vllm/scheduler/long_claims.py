"""Claims whose rows are computed before vLLM schedules their request.

vLLM lets a connector load while a request waits: the request has its blocks, and is scheduled when the load is said to
be done. Here the load is done when its rows are computed, as many in each step as others leave room for. So are rows
that find no room in one step, and rows that are chosen by a probe: first a step computes gaps and question, then its
scores choose what the next computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from semblend_core import ProbeEnd, Span
from semblend_core.serving import Claim, CorrectionOrder, Landed, LoadOrder, ProbeOrder, Rows, StepWork, take_rows
from semblend_vllm.scheduler.requests import VllmRequest

LEAST_TOGETHER = 32
"""Of a span with many rows, in the step that corrects it, where others stand before them that the step can have."""


@dataclass
class LongClaim:
    life: VllmRequest
    claim: Claim
    """While it has a ``probing`` its rows are not known."""
    load: LoadOrder
    told: int
    """Tokens that vLLM counts on, for which the request has blocks."""
    left: Rows
    """Rows that no step has had: of its probe, then of the claim itself."""
    chosen: Rows = ()
    """Those that are in the step that is being made."""
    begun: bool = False
    """Workers were told of its load."""
    landed: Landed | None = None
    """What was loaded. It counts when all rows are computed: until then a correction may fail, and all is in vain."""

    @property
    def is_probed(self) -> bool:
        """Its rows wait for what a probe shows."""
        return self.claim.probing is not None

    @property
    def left_tokens(self) -> int:
        return tokens_of(self.left)

    def choose(self, most_tokens: int, most_rows: int) -> None:
        """Rows of one span stay together, if they can: all of them say how it is corrected. At least an eighth of them
        does, or some tens.
        """
        rows = self.left
        self.chosen, self.left = take_rows(rows, most_tokens, most_rows)
        span = self._span_that_is_cut()
        if span is None:
            return
        before, behind = split(rows, span.target_start)
        inside, _ = split(behind, span.target_end)
        in_this_step, _ = split(inside, self.left[0][0])
        fits_a_step = len(inside) <= most_rows and tokens_of(inside) <= most_tokens
        if before and (fits_a_step or tokens_of(in_this_step) < min(LEAST_TOGETHER, tokens_of(inside) // 8)):
            self.chosen, self.left = before, behind

    def _span_that_is_cut(self) -> Span | None:
        if not self.left or self.is_probed or self.claim.correction is None:
            return None
        cut = self.left[0][0]
        return next((span for span in self.claim.spans if span.target_start < cut < span.target_end), None)

    def add_to(self, work: StepWork) -> None:
        """What the workers do with the chosen rows."""
        if not self.begun:
            work.loads.append(self.load)
        self.begun = True
        if self.claim.probing is None:
            correction = corrected(self.load, self.claim, self.chosen)
            work.corrections += [] if correction is None else [correction]
        elif not self.left:
            # Queries are seen in the step that computes them: the end of a long question, perhaps.
            start, end = self.claim.probing.question
            question = (max(start, self.chosen[-1][0]), end)
            work.probes.append(
                ProbeOrder(self.life.request_id, self.load.block_ids, question, self.claim.probing.layers)
            )


class LongClaims:
    """Those that vLLM has given blocks to. Kept in the order in which it did."""

    def __init__(self, note_probe: Callable[[ProbeEnd], None]) -> None:
        self._claims: dict[str, LongClaim] = {}
        self._released: list[LongClaim] = []
        """Whose requests vLLM may schedule in the step that is being made."""
        self._last_steps: list[tuple[StepWork, LongClaim]] = []
        """Those steps, with their claims, while what workers have to say of them is still to come."""
        self._ended: list[str] = []
        self._note_probe = note_probe

    def __len__(self) -> int:
        return len(self._claims)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._claims

    def begin(self, life: VllmRequest, claim: Claim, load: LoadOrder) -> None:
        self._claims[life.request_id] = LongClaim(life, claim, load, claim.blocks_for - claim.start, claim.first_rows)

    def unfinished(self) -> list[LongClaim]:
        return [claim for claim in self._claims.values() if claim.left]

    def due(self) -> tuple[int, int]:
        """Tokens and rows that the step which is being made must have room for."""
        return sum(claim.left_tokens for claim in self._released), sum(len(claim.left) for claim in self._released)

    def probed(self, request_id: str) -> LongClaim | None:
        """One whose rows wait for what a probe shows."""
        claim = self._claims.get(request_id)
        return claim if claim is not None and claim.is_probed else None

    def settle(self, probed: LongClaim, claim: Claim, end: ProbeEnd) -> None:
        """Its rows are known."""
        probed.claim, probed.left = claim, claim.rows
        self._note_probe(end)

    def add_work(self, work: StepWork, most_tokens: int, most_rows: int) -> None:
        """Choose rows for the step that is being made, as far as there is room, and tell what goes with them."""
        self._last_steps += [(work, claim) for claim in self._released]
        for claim in (*self._released, *self.unfinished()):
            if not claim.left:
                continue
            if most_tokens < 1 or most_rows < 1:
                break
            claim.choose(most_tokens, most_rows)
            most_tokens -= tokens_of(claim.chosen)
            most_rows -= len(claim.chosen)
            claim.add_to(work)

    def overdue(self) -> list[VllmRequest]:
        """Requests whose last rows found no room after all: the rest of their prompts is computed over nothing."""
        return [claim.life for claim in self._released if claim.left]

    def take_chosen(self) -> list[tuple[VllmRequest, Rows]]:
        """The rows to put into the step that was made; each is taken once."""
        claims = (*self._released, *self._claims.values())
        taken = [(claim.life, claim.chosen) for claim in claims if claim.chosen]
        self._released = []
        for claim in claims:
            claim.chosen = ()
        return taken

    def take_ready(self, most_tokens: int, most_rows: int) -> list[LongClaim]:
        """Those whose rows are all in steps that were made, or will be in the next, which has so much room.

        The same step may compute the rest of their prompts.
        """
        ready = []
        for claim in list(self._claims.values()):
            fits = claim.left_tokens <= most_tokens and len(claim.left) <= most_rows
            if not fits or not claim.begun or claim.is_probed:
                continue
            most_tokens, most_rows = most_tokens - claim.left_tokens, most_rows - len(claim.left)
            del self._claims[claim.life.request_id]
            ready.append(claim)
        self._released = ready
        return ready

    def under_way(self, life: VllmRequest) -> LongClaim | None:
        """The request's claim, while it has rows that may still fail."""
        claims = (*self._claims.values(), *self._released, *(claim for _, claim in self._last_steps))
        return next((claim for claim in claims if claim.life is life), None)

    def take_computed(self, work: StepWork) -> list[LongClaim]:
        """Those whose last rows were computed by the step with this work. All its failures were told."""
        done = [claim for step, claim in self._last_steps if step is work]
        self._last_steps = [(step, claim) for step, claim in self._last_steps if step is not work]
        return done

    def drop(self, request_id: str) -> LongClaim | None:
        """The request starts over. What it had, if it was one of these."""
        claim = self._claims.pop(request_id, None)
        if claim is not None and claim.is_probed and claim.begun:
            self._note_probe(ProbeEnd.ENDED)
        return claim

    def end(self, request_id: str) -> None:
        """The request has ended."""
        if self.drop(request_id) is not None:
            self._ended.append(request_id)

    def take_ended(self) -> list[str]:
        """Requests whose blocks vLLM keeps until it is told that nothing is being loaded into them."""
        ended, self._ended = self._ended, []
        return ended


def corrected(load: LoadOrder, claim: Claim, rows: Rows) -> CorrectionOrder | None:
    """The correction that ``rows`` allow: of the spans whose first computed tokens they are."""
    if claim.correction is None:
        return None
    spans = tuple(span for span in claim.spans if _begins_in(rows, span, claim.rows))
    return CorrectionOrder(load.request_id, load.block_ids, spans, rows, claim.correction) if spans else None


def tokens_of(rows: Rows) -> int:
    return sum(end - start for start, end in rows)


def split(rows: Rows, at: int) -> tuple[Rows, Rows]:
    """What of ``rows`` lies before a position, and what from it on."""
    before = tuple((start, min(end, at)) for start, end in rows if start < at)
    return before, tuple((max(start, at), end) for start, end in rows if end > at)


def _begins_in(rows: Rows, span: Span, all_rows: Rows) -> bool:
    for start, end in all_rows:
        first = max(start, span.target_start)
        if first < min(end, span.target_end):
            return any(start <= first < end for start, end in rows)
    return False
