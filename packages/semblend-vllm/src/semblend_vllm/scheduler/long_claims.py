"""Claims whose rows find no room in one step.

vLLM lets a connector load while a request waits: the request has its blocks, and is scheduled when the load is said to
be done. Here the load is done when its rows are computed, as many in each step as others leave room for.
"""

from __future__ import annotations

from dataclasses import dataclass

from semblend_core.serving import Claim, CorrectionOrder, LoadOrder, Rows, StepWork, take_rows
from semblend_vllm.scheduler.requests import VllmRequest


@dataclass
class LongClaim:
    life: VllmRequest
    claim: Claim
    load: LoadOrder
    left: Rows
    """Rows that no step has had."""
    chosen: Rows = ()
    """Those that are in the step that is being made."""
    begun: bool = False
    """Workers were told of its load."""

    def choose(self, most_tokens: int, most_rows: int) -> None:
        self.chosen, self.left = take_rows(self.left, most_tokens, most_rows)

    def work(self) -> tuple[list[LoadOrder], list[CorrectionOrder]]:
        """What the workers do before the chosen rows."""
        loads = [] if self.begun else [self.load]
        self.begun = True
        correction = corrected(self.load, self.claim, self.chosen)
        return loads, [] if correction is None else [correction]


class LongClaims:
    """Those that vLLM has given blocks to. Kept in the order in which it did."""

    def __init__(self) -> None:
        self._claims: dict[str, LongClaim] = {}
        self._ended: list[str] = []

    def __len__(self) -> int:
        return len(self._claims)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._claims

    def begin(self, life: VllmRequest, claim: Claim, load: LoadOrder) -> None:
        self._claims[life.request_id] = LongClaim(life, claim, load, claim.rows)

    def unfinished(self) -> list[LongClaim]:
        return [claim for claim in self._claims.values() if claim.left]

    def add_work(self, work: StepWork, most_tokens: int, most_rows: int) -> None:
        """Choose rows for the step that is being made, as far as there is room, and tell what goes with them."""
        for claim in self.unfinished():
            if most_tokens < 1 or most_rows < 1:
                break
            claim.choose(most_tokens, most_rows)
            most_tokens -= sum(end - start for start, end in claim.chosen)
            most_rows -= len(claim.chosen)
            loads, corrections = claim.work()
            work.loads += loads
            work.corrections += corrections

    def take_chosen(self) -> list[tuple[VllmRequest, Rows]]:
        """The rows to put into the step that was made; each is taken once."""
        taken = [(claim.life, claim.chosen) for claim in self._claims.values() if claim.chosen]
        for claim in self._claims.values():
            claim.chosen = ()
        return taken

    def take_ready(self) -> list[LongClaim]:
        """Those whose rows are all in steps that were made: the next may compute the rest of the prompt."""
        ready = [claim for claim in self._claims.values() if not claim.left and claim.begun]
        for claim in ready:
            del self._claims[claim.life.request_id]
        return ready

    def never_sent(self, request_id: str) -> bool:
        """Whether no worker has been told of its load."""
        claim = self._claims.get(request_id)
        return claim is not None and not claim.begun

    def drop(self, request_id: str) -> bool:
        """The request starts over. Whether it was one of these."""
        return self._claims.pop(request_id, None) is not None

    def end(self, request_id: str) -> None:
        """The request has ended."""
        if self.drop(request_id):
            self._ended.append(request_id)

    def take_ended(self) -> list[str]:
        """Requests whose blocks vLLM keeps until it is told that nothing is being loaded into them."""
        ended, self._ended = self._ended, []
        return ended


def corrected(load: LoadOrder, claim: Claim, rows: Rows) -> CorrectionOrder | None:
    """The correction that ``rows`` allow: of the spans that they begin."""
    if claim.correction is None:
        return None
    spans = tuple(span for span in claim.spans if any(start <= span.target_start < end for start, end in rows))
    return CorrectionOrder(load.request_id, load.block_ids, spans, rows, claim.correction) if spans else None
