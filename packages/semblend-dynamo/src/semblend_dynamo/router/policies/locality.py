"""semantic_locality: the replica that should already hold most of what the prompt is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from semblend_core import DeclineReason, Namespace, Settings, donor_id_of
from semblend_dynamo.placement import (
    Candidate,
    Decision,
    DonorBook,
    Finding,
    Landings,
    PlacementSettings,
    Reason,
    choose,
    likeness_credits,
)
from semblend_dynamo.router.asked import Asked
from semblend_dynamo.router.likeness import Likeness
from semblend_dynamo.router.policies.choice import Choice, Policy
from semblend_dynamo.router.policies.simple import PrefixHash
from semblend_dynamo.router.replicas import Replica, least_busy

UNPLACED = "fallback"
"""The path of requests that nothing was found for: they went by load, or by their prefix."""


class SemanticLocality(Policy):
    """Core's discovery over the prompts that each replica served, weighed by the types of their blocks.

    Nothing here says that a replica reuses anything: that is the engine's word. A placement only brings a request to
    where reuse is possible.
    """

    name = "semantic_locality"

    def __init__(
        self,
        settings: Settings,
        placement: PlacementSettings,
        cache_tokens: int,
        likeness: Likeness | None = None,
    ) -> None:
        self._book = DonorBook(settings)
        self._landings: Landings[str] = Landings(cache_tokens)
        self._rule = placement.rule()
        self._off = placement.mode == "off"
        self._likeness = likeness
        self._by_prefix = PrefixHash()
        self._findings: dict[str, Finding] = {}

    @property
    def donors(self) -> int:
        return len(self._book)

    async def choose(self, asked: Asked, replicas: Sequence[Replica]) -> Choice:
        namespace = asked.namespace
        finding = self._book.find(asked.request_id, namespace, asked.token_ids)
        self._findings[asked.request_id] = finding
        try:
            return await self._place(asked, namespace, replicas, finding)
        except BaseException:
            # The client may leave while its likeness is looked for: nobody will say then that the request ended.
            self._end(asked, placed=False)
            raise

    async def _place(self, asked: Asked, namespace: Namespace, replicas: Sequence[Replica], finding: Finding) -> Choice:
        if finding.reason is DeclineReason.NO_SALT:
            # Nobody's prompt may be found again without a salt. Exact prefixes are shared all the same.
            return self._unplaced(self._by_prefix.by_prefix(asked, replicas).replica, finding.reason.value)
        if finding.reason is not None:
            placed = await self._by_likeness(asked, namespace, replicas)
            return placed or self._unplaced(least_busy(replicas), finding.reason.value)
        held = {donor: self._landings.held(namespace.digest, donor) for donor in finding.donor_ids}
        weighed, counted = _credits(finding, held, asked.token_weights)
        decision = self._decide(asked, replicas, {name: round(value) for name, value in weighed.items()})
        if decision.worker is None or self._off:
            return self._unplaced(least_busy(replicas), decision.reason.value)
        tokens = counted[decision.worker]
        similarity = tokens / max(1, asked.tokens)
        return Choice(_named(decision.worker, replicas), self.name, decision.reason.value, similarity, tokens)

    async def _by_likeness(self, asked: Asked, namespace: Namespace, replicas: Sequence[Replica]) -> Choice | None:
        """No tokens in common, but a prompt that reads alike: a bias, and never a promise of reuse."""
        if self._likeness is None or self._off:
            return None
        similar = await self._likeness.ask(asked, namespace)
        held = {donor: self._landings.held(namespace.digest, donor) for donor in similar}
        credits = likeness_credits(similar, held, asked.tokens, self._likeness.weight)
        decision = self._decide(asked, replicas, credits, because=Reason.LIKENESS)
        if decision.worker is None:
            return None
        best = max(value for donor, value in similar.items() if decision.worker in held[donor])
        return Choice(_named(decision.worker, replicas), "semantic_likeness", decision.reason.value, best)

    def _decide(
        self, asked: Asked, replicas: Sequence[Replica], credits: Mapping[str, int], because: Reason = Reason.SPANS
    ) -> Decision[str]:
        candidates = [Candidate(each.name, each.tokens_in_flight, asked.tokens) for each in replicas]
        return choose(candidates, credits, self._rule, because=because)

    def landed(self, asked: Asked, replica: Replica) -> None:
        namespace, ids = asked.namespace, asked.token_ids
        donor_id = donor_id_of(ids)
        added = self._book.add(namespace, donor_id, ids, self._findings.get(asked.request_id))
        for key in added.evicted:
            self._landings.forget_donor(*key)
            if self._likeness is not None:
                self._likeness.forget(key)
        if added.kept or added.reason is DeclineReason.DUPLICATE_DONOR:
            self._landings.landed(namespace.digest, donor_id, replica.name, asked.tokens)
            if self._likeness is not None:
                self._likeness.offer(namespace, donor_id, asked)

    def ended(self, asked: Asked, choice: Choice, landed: Replica | None) -> None:
        self._end(asked, placed=choice.path != UNPLACED and landed is choice.replica)

    def _end(self, asked: Asked, *, placed: bool) -> None:
        finding = self._findings.pop(asked.request_id, None)
        if finding is not None:
            self._book.report(asked.request_id, placed=placed, reason=finding.reason)

    def forget(self, replica: Replica) -> None:
        self._landings.forget_worker(replica.name)

    def close(self) -> None:
        self._book.close()
        if self._likeness is not None:
            self._likeness.close()

    def check_integrity(self) -> None:
        self._book.check_integrity()
        assert not self._findings, "a request that ended is still remembered"

    def _unplaced(self, replica: Replica, reason: str) -> Choice:
        return Choice(replica, UNPLACED, reason, 0.0)


def _named(name: str, replicas: Sequence[Replica]) -> Replica:
    return next(each for each in replicas if each.name == name)


def _credits(
    finding: Finding, held: Mapping[str, Mapping[str, int]], weights: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> tuple[dict[str, float], dict[str, int]]:
    """By replica: what it should hold of the prompt, weighed and as a number of tokens."""
    covered: dict[str, np.ndarray[tuple[int], np.dtype[np.bool_]]] = {}
    for piece in finding.pieces:
        for name, tokens in held.get(piece.donor_id, {}).items():
            there = piece.within(tokens)
            if there is not None:
                mask = covered.setdefault(name, np.zeros(finding.prompt_tokens, dtype=np.bool_))
                mask[there.target_start : there.target_end] = True
    weighed = {name: float(weights[mask].sum()) for name, mask in covered.items()}
    return weighed, {name: int(mask.sum()) for name, mask in covered.items()}
