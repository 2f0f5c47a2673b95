"""Claims whose rows are too many for one step.

vLLM lets a connector load while a request waits: the request has its blocks, and is scheduled when the load is said to
be done. Here the load is done when its rows are computed, some in each step, beside whatever else the step computes.
"""

from __future__ import annotations

from dataclasses import dataclass

from semblend_core.serving import Claim, CorrectionOrder, LoadOrder, Rows, StepWork
from semblend_vllm.scheduler.requests import VllmRequest


@dataclass
class LongClaim:
    life: VllmRequest
    claim: Claim
    load: LoadOrder
    next_step: int = 0
    """Of ``claim.steps``."""
    chosen: bool = False
    """Its next rows are in the step that is being made."""

    @property
    def rows(self) -> Rows:
        return self.claim.steps[self.next_step]

    @property
    def done(self) -> bool:
        return self.next_step == len(self.claim.steps)

    def work(self) -> tuple[list[LoadOrder], list[CorrectionOrder]]:
        """What the workers do before the chosen rows."""
        loads = [] if self.next_step else [self.load]
        correction = corrected(self.load, self.claim, self.rows)
        return loads, [] if correction is None else [correction]


class LongClaims:
    """Those that vLLM has given blocks to. Kept in the order in which it did."""

    def __init__(self) -> None:
        self._claims: dict[str, LongClaim] = {}
        self._dropped: list[str] = []

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._claims

    def begin(self, life: VllmRequest, claim: Claim, load: LoadOrder) -> None:
        self._claims[life.request_id] = LongClaim(life, claim, load)

    def unfinished(self) -> list[LongClaim]:
        return [claim for claim in self._claims.values() if not claim.done]

    def add_work(self, work: StepWork) -> None:
        for claim in self._claims.values():
            if claim.chosen:
                loads, corrections = claim.work()
                work.loads += loads
                work.corrections += corrections

    def take_chosen(self) -> list[tuple[VllmRequest, Rows]]:
        """The rows to put into the step that was made; each is taken once."""
        taken = []
        for claim in self._claims.values():
            if claim.chosen:
                taken.append((claim.life, claim.rows))
                claim.chosen, claim.next_step = False, claim.next_step + 1
        return taken

    def take_ready(self) -> list[LongClaim]:
        """Those whose rows are all in steps that were made: the next may compute the rest of the prompt."""
        ready = [claim for claim in self._claims.values() if claim.done]
        for claim in ready:
            del self._claims[claim.life.request_id]
        return ready

    def never_sent(self, request_id: str) -> bool:
        """Whether no worker has been told of its load."""
        claim = self._claims.get(request_id)
        return claim is not None and claim.next_step == 0 and not claim.chosen

    def drop(self, request_id: str) -> None:
        """The request has ended or starts over."""
        if self._claims.pop(request_id, None) is not None:
            self._dropped.append(request_id)

    def take_dropped(self) -> list[str]:
        """Requests whose blocks vLLM keeps until it is told that nothing is being loaded into them."""
        dropped, self._dropped = self._dropped, []
        return dropped


def corrected(load: LoadOrder, claim: Claim, rows: Rows) -> CorrectionOrder | None:
    """The correction that ``rows`` allow: of the spans that they begin."""
    if claim.correction is None:
        return None
    spans = tuple(span for span in claim.spans if any(start <= span.target_start < end for start, end in rows))
    return CorrectionOrder(load.request_id, load.block_ids, spans, rows, claim.correction) if spans else None
