"""What the workers are told to do with a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semblend_core import DeclineReason
from semblend_core.serving import (
    CaptureOrder,
    Claim,
    CorrectionOrder,
    DonorKeeper,
    LoadOrder,
    RequestBook,
    Stage,
    StepWork,
    contained,
)
from semblend_vllm.scheduler.admission import Admission
from semblend_vllm.scheduler.long_claims import LongClaims, corrected, tokens_of
from semblend_vllm.scheduler.requests import VllmRequest


class StepOrders:
    def __init__(
        self,
        requests: RequestBook[VllmRequest],
        keeper: DonorKeeper,
        admission: Admission,
        long_claims: LongClaims,
        load_failed: Callable[[VllmRequest, DeclineReason], None],
    ) -> None:
        """``load_failed``: told of requests whose last rows found no room."""
        self._requests, self._keeper, self._admission, self._long_claims = requests, keeper, admission, long_claims
        self._load_failed = load_failed
        self._to_purge: list[str] = []
        """Tenants that no step has told the workers of."""
        self._loads: dict[str, tuple[LoadOrder, CorrectionOrder | None]] = {}
        """Of admitted requests that no step has computed yet."""

    @property
    def any_purge(self) -> bool:
        """Whether a step must tell the workers to drop something."""
        return bool(self._to_purge)

    def purge(self, tenant: str) -> None:
        self._to_purge.append(tenant)

    def load(self, life: VllmRequest, claim: Claim, load: LoadOrder) -> None:
        """With the step that computes the request, or over the steps that compute its rows."""
        if not life.over_steps:
            self._loads[life.request_id] = (load, corrected(load, claim, claim.rows))
            return
        self._long_claims.begin(life, claim, load)
        if self._admission.room is not None:
            self._admission.room.hold_place()

    def cancel(self, request_id: str) -> bool:
        """The request has ended. Whether no step was to compute it, so that nothing will be told that counts."""
        settled = self._loads.pop(request_id, None) is not None or request_id in self._long_claims
        self._long_claims.end(request_id)
        return settled

    def put_into(
        self, work: StepWork, scheduled: dict[str, int], block_ids_of: Callable[[str], list[int]], weights: int
    ) -> None:
        """What is done in the step that computes ``scheduled`` tokens per request."""
        work.weights, work.computes = weights, bool(scheduled)
        work.purge, self._to_purge = self._to_purge, []
        for request_id in [each for each in self._loads if each in scheduled]:
            load, correction = self._loads.pop(request_id)
            work.loads.append(load)
            work.corrections += [] if correction is None else [correction]
        self._add_long_claims(work, scheduled)
        if self._admission.fetch_orders is not None:
            self._admission.fetch_orders.put_into(work)
        self._add_captures(work, scheduled, block_ids_of)
        work.copied = self._keeper.take_copied()
        work.forget = self._keeper.take_forgotten()  # Last: what is captured may cost its tenant's oldest their place.

    def claims_in(self, work: StepWork) -> list[tuple[VllmRequest, Claim]]:
        """The requests of this step whose rows must be computed in it."""
        chosen = [self._requests.get(load.request_id) for load in work.loads]
        found = [(each, each.claim) for each in chosen if each is not None and each.claim is not None]
        return [(life, claim) for life, claim in found if not life.over_steps]

    def check_integrity(self) -> None:
        for request_id in self._loads:
            life = self._requests.get(request_id)
            assert life is not None, "a load is ordered for a request that is gone"
            assert life.stage is Stage.LOADING, f"a load is ordered for a request that is {life.stage}"

    def _add_long_claims(self, work: StepWork, scheduled: dict[str, int]) -> None:
        """Their next rows take what this step has left. While vLLM pauses it has nothing."""
        room = self._admission.room
        if room is not None:
            rows = tuple(row for _, claim in self.claims_in(work) for row in claim.rows)
            tokens = sum(scheduled.values()) + tokens_of(rows)
            places = room.most_sequences - room.held_sequences() - len(rows)
            most_tokens = 0 if room.is_paused() else room.most_tokens - tokens
            self._long_claims.add_work(work, most_tokens, places)
            for life in self._long_claims.overdue():
                self._load_failed(life, DeclineReason.ALLOCATION_FAILED)

    @contained
    def _add_captures(
        self, work: StepWork, scheduled: dict[str, int], block_ids_of: Callable[[str], list[int]]
    ) -> None:
        for request_id, tokens in scheduled.items():
            life = self._requests.get(request_id)
            if life is None or life.captured or not _is_time_to_capture(life.request, tokens):
                continue
            blocks = block_ids_of(request_id)  # First: what is decided must be ordered.
            kept = self._keeper.decide(life)
            if kept is not None:
                order = CaptureOrder(kept.donor_id, life.namespace, blocks, kept.token_ids, kept.saved_ms)
                work.captures.append(order)


def _is_time_to_capture(request: Any, tokens: int) -> bool:
    """Once its first token is out: until then somebody waits. Earlier where this is the last step of it."""
    computed = request.num_computed_tokens + tokens
    if computed < request.num_prompt_tokens:
        return False
    return bool(request.num_output_tokens or computed >= request.num_prompt_tokens + request.max_tokens - 1)
