"""Where one request should go: discovery, residency, cost, and evidence where there is nothing better."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from semblend_core import TokenIds
from semblend_dynamo.dynamo.likeness import Likeness
from semblend_dynamo.dynamo.requests import RoutedRequest
from semblend_dynamo.dynamo.residency import Residency, WorkerRank
from semblend_dynamo.placement import (
    Decision,
    DonorBook,
    Finding,
    PlacementSettings,
    Reason,
    choose,
    credits_of,
    likeness_credits,
)

MOST_PIECES_TOLD = 64
"""Pieces that travel to the worker with a request."""


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """A decision and what it rests on."""

    request: RoutedRequest
    finding: Finding
    decision: Decision[WorkerRank]
    held: dict[str, dict[WorkerRank, int]] = field(default_factory=dict)
    """Of each donor asked about, how many leading tokens lie where. Empty where no donor was asked about."""
    exact_tokens: dict[WorkerRank, int] = field(default_factory=dict)
    decide_ms: float = 0.0

    def on(self, worker: WorkerRank) -> int:
        """Tokens of the prompt that the worker has, exactly or as a donor's."""
        exact = self.exact_tokens.get(worker, 0)
        return exact + credits_of(self.finding, self.held, self.exact_tokens).get(worker, 0)

    def evidence(self) -> dict[str, Any]:
        """For the engine, which decides by itself what it can use. It promises nothing."""
        return {
            "outcome": "placement",
            "reason": str(self.decision.reason),
            "credit_tokens": self.decision.credit_tokens,
            "spans": [
                {
                    "target_start": piece.target_start,
                    "length": piece.length,
                    "donor_id": piece.donor_id,
                    "donor_start": piece.donor_start,
                }
                for piece in self.finding.pieces[:MOST_PIECES_TOLD]
            ],
        }


class Decider:
    def __init__(
        self,
        book: DonorBook,
        residency: Residency,
        settings: PlacementSettings,
        likeness: Likeness | None = None,
    ) -> None:
        self._book = book
        self._residency = residency
        self._settings = settings
        self._rule = settings.rule()
        self._likeness = likeness if settings.likeness > 0 else None

    async def decide(self, request: RoutedRequest) -> Verdict:
        """``DonorBook.report`` is due afterwards, whatever was decided; not where this raises."""
        started = time.perf_counter()
        finding = self._book.find(request.request_id, request.namespace, request.token_ids)
        try:
            by = self._by_spans if finding.pieces else self._by_likeness
            verdict = await by(request, finding)
        except BaseException:
            self._book.report(request.request_id, placed=False, reason=finding.reason)
            raise
        elapsed_ms = (time.perf_counter() - started) * 1e3
        return Verdict(request, finding, verdict.decision, verdict.held, verdict.exact_tokens, decide_ms=elapsed_ms)

    async def _by_spans(self, request: RoutedRequest, finding: Finding) -> Verdict:
        donors = {}
        for donor_id in finding.donor_ids[: self._settings.donors]:
            tokens = self._tokens(request, donor_id)
            if tokens is not None:
                donors[donor_id] = tokens[: finding.needed_of(donor_id)].tolist()
        held = await self._residency.held(donors, request)
        if not any(held.values()):
            return Verdict(request, finding, Decision(None, Reason.NOT_RESIDENT), held)
        candidates = await self._residency.candidates(request)
        exact = {each.worker: each.exact_tokens for each in candidates}
        credits = credits_of(finding, held, exact)
        return Verdict(request, finding, choose(candidates, credits, self._rule), held, exact)

    async def _by_likeness(self, request: RoutedRequest, finding: Finding) -> Verdict:
        nothing = Verdict(request, finding, Decision(None, Reason.NO_FINDING))
        if self._likeness is None or len(self._book) == 0:
            return nothing
        similarity = await self._likeness.of(request)
        donors = {}
        for donor_id in list(similarity)[: self._settings.donors]:
            tokens = self._tokens(request, donor_id)
            if tokens is not None:
                donors[donor_id] = tokens.tolist()
        held = await self._residency.held(donors, request) if donors else {}
        if not any(held.values()):
            return nothing
        candidates = await self._residency.candidates(request)
        exact = {each.worker: each.exact_tokens for each in candidates}
        credits = likeness_credits(similarity, held, finding.prompt_tokens, self._settings.likeness)
        return Verdict(request, finding, choose(candidates, credits, self._rule, because=Reason.LIKENESS), {}, exact)

    def _tokens(self, request: RoutedRequest, donor_id: str) -> TokenIds | None:
        return self._book.tokens(request.namespace, donor_id)
