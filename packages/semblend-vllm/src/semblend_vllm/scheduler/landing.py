"""What became of loads, corrections and probes, as the workers say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from semblend_core import DeclineReason, ProbeEnd
from semblend_core.recompute import Scores
from semblend_core.serving import Landed, RequestBook, Stage, StepWork, WorkerNews, contain
from semblend_vllm.scheduler.admission import Admission
from semblend_vllm.scheduler.lineages import Lineages
from semblend_vllm.scheduler.long_claims import LongClaims
from semblend_vllm.scheduler.requests import VllmRequest


class Landing:
    def __init__(
        self,
        requests: RequestBook[VllmRequest],
        lineages: Lineages,
        admission: Admission,
        note_probe: Callable[[ProbeEnd], None],
    ) -> None:
        self._requests, self._lineages, self._admission, self._note_probe = requests, lineages, admission, note_probe
        self.long_claims = LongClaims(self._probe_ended)
        self._failed: list[VllmRequest] = []
        """Requests whose load did not come: their blocks hold nothing of use."""

    def hear(self, news: WorkerNews) -> None:
        for request_id, reason in news.failed.items():  # First: what follows may fail, and these must not be lost.
            life = self._requests.get_loading(request_id)
            if life is not None:
                self.load_failed(life, reason)
        for request_id, landed in news.landed.items():
            life = self._requests.get_loading(request_id)
            if life is not None and request_id not in news.failed:
                self._landed(life, landed)
        for request_id, scores in news.scores.items():
            self._choose_rows(request_id, scores)

    def step_ended(self, work: StepWork) -> None:
        """All that its workers had to say of a step was heard."""
        for probe in work.probes:
            self._choose_rows(probe.request_id, None)
        for done in self.long_claims.take_computed(work):
            if done.landed is not None:
                # Rows that a probe chose are known since it landed: how many tokens it stands for, too.
                self._confirm(done.life, replace(done.landed, tokens=done.claim.reused_tokens))

    def load_failed(self, life: VllmRequest, reason: DeclineReason) -> None:
        self._lineages.failed(life)
        # One that has started over already may hear of its old load again. Without room for rows vLLM itself computes
        # what did not come.
        if life.stage in (Stage.LOADING, Stage.REUSING) and self._admission.room is not None:
            self._failed.append(life)
        self._requests.decline(life, reason)

    def take_failed(self) -> list[VllmRequest]:
        """Requests that must be computed from their exact prefix on: what they count on never came."""
        failed, self._failed = self._failed, []
        return [life for life in failed if life.stage is not Stage.ENDED]

    def _landed(self, life: VllmRequest, landed: Landed) -> None:
        under_way = self.long_claims.under_way(life)
        if under_way is None:
            self._confirm(life, landed)
        else:  # Nobody counts on it, or goes on from it, before its rows are computed.
            under_way.landed = landed

    def _confirm(self, life: VllmRequest, landed: Landed) -> None:
        in_place = 0 if life.taken is None else life.taken.tokens
        self._requests.confirm(life, landed.tokens + in_place, landed.bytes)
        self._lineages.landed(life)

    def _choose_rows(self, request_id: str, scores: Scores | None) -> None:
        """A probe has shown where the question looks; None: it has shown nothing, and the tier's other rows stand."""
        probed = self.long_claims.probed(request_id)
        if probed is None or probed.life.stage is not Stage.LOADING:
            return
        life, claim, end = probed.life, probed.claim.unprobed(), ProbeEnd.FAILED
        if scores is not None:
            chosen = contain("choosing rows by a probe", self._admission.choose, life, probed.claim, scores)
            claim, end = (claim, end) if chosen is None else (chosen, ProbeEnd.CHOSE)
        life.claim = claim
        if not life.purged:  # Nobody shall find what it leaves.
            self._lineages.regrow(life, claim)
        self.long_claims.settle(probed, claim, end)

    def _probe_ended(self, end: ProbeEnd) -> None:
        self._note_probe(end)
        self._admission.probes.ended(end)
