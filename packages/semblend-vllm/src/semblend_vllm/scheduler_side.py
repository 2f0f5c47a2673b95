"""The scheduler's half: decides on token ids alone what a request may reuse, and keeps the books."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from semblend_core import (
    DeclineReason,
    DonorOffer,
    LookupRequest,
    Namespace,
    Outcome,
    OutcomeKind,
    Plan,
    SemanticLookupProvider,
    Settings,
)
from semblend_core.recompute import choose_policy
from semblend_vllm.claims import Claim, claim_of
from semblend_vllm.messages import Capture, Load, StepWork, WorkerNews
from semblend_vllm.requests import FollowedRequest, donor_id_of
from semblend_vllm.rows import RowRoom

logger = logging.getLogger(__name__)

MOST_POSTPONEMENTS = 50
"""Steps that a request waits for room for its rows before it is served cold."""


class SchedulerSide:
    """Called on the scheduler's thread only. Nothing raises into the engine: what fails is served cold, and counted."""

    def __init__(
        self,
        provider: SemanticLookupProvider,
        settings: Settings,
        block_size: int,
        follow: Callable[[Any], FollowedRequest | DeclineReason],
        ranks: int = 1,
        local_news: Callable[[], WorkerNews | None] = lambda: None,
    ) -> None:
        self.provider, self._settings, self._block_size, self._ranks = provider, settings, block_size, ranks
        self._follow, self._local_news = follow, local_news
        self._followed: dict[str, FollowedRequest] = {}
        self._loads: dict[str, Load] = {}
        self._captured: dict[tuple[str, str], tuple[Namespace, Any]] = {}
        """Donors whose KV is being copied, and their tokens, until they are durable."""
        self._known: dict[tuple[str, str], Namespace] = {}
        """Donors that are on their way or offered."""
        self._durable_ranks: dict[tuple[str, str], int] = {}
        self.room: RowRoom | None = None
        """What a step has for rows; None where our scheduler is not in charge and rows cannot be had."""
        self._generation = 0
        """Grows with every donor that can be found: a lookup is not repeated while it stands."""
        self.proved = False
        """The workers' self-test passed; until then plans are found and not loaded."""

    def catch_up(self) -> None:
        """Hear what a worker in this process has not told yet."""
        news = self._local_news()
        if news is not None:
            self.hear(news)

    # vLLM's calls, in the order in which a request meets them.

    def claim(self, request: Any, computed_tokens: int) -> int | None:
        """Tokens behind the exact prefix that the engine may count on; None: ask again in the next step."""
        try:
            return self._claim(request, computed_tokens)
        except Exception:
            logger.exception("no reuse for %s", request.request_id)
            self._settle(request.request_id, DeclineReason.INTERNAL_ERROR)
            return 0

    def may_plan(self, request: Any) -> bool:
        """Whether it is still open what this request reuses."""
        followed = self._followed.get(request.request_id)
        return followed is None or not (followed.mode == "off" or followed.settled or followed.ordered)

    def prepare(self, request: Any, computed_tokens: int) -> Claim | None:
        """Make the plan of a request that may be admitted next, so that room can be kept for its rows."""
        try:
            followed = self._planned(request, computed_tokens)  # What finds nothing now may find something later.
        except Exception:
            logger.exception("no reuse for %s", request.request_id)
            self._settle(request.request_id, DeclineReason.INTERNAL_ERROR)
            return None
        return None if followed is None else followed.claim

    def allocated(self, request: Any, block_ids: list[int], external_tokens: int) -> None:
        followed = self._followed.get(request.request_id)
        if followed is None or followed.claim is None or followed.ordered:
            return  # vLLM also tells of requests that it resumes, whose approximate KV is theirs for good.
        if external_tokens <= 0:
            # The engine found a use for its own cache, or none for ours.
            self._drop_claim(followed, DeclineReason.ALLOCATION_FAILED)
            return
        claim, followed.ordered = followed.claim, True
        self._loads[followed.request_id] = Load(
            followed.request_id,
            followed.namespace,
            block_ids,
            claim.spans,
            claim.rows,
            claim.correction,
            claim.reused_tokens,
        )

    def step_work(self, scheduled: dict[str, int], block_ids_of: Callable[[str], list[int]]) -> StepWork:
        """What the workers do in the step that computes ``scheduled`` tokens per request."""
        work = StepWork()
        for request_id in [each for each in self._loads if each in scheduled]:
            work.loads.append(self._loads.pop(request_id))
        try:
            work.captures += self._captures_in(scheduled, block_ids_of)
        except Exception:
            logger.exception("nothing is captured in this step")
        return work

    def claims_in(self, work: StepWork) -> list[tuple[FollowedRequest, Claim]]:
        """The requests of this step whose rows must be computed in it."""
        chosen = [self._followed[load.request_id] for load in work.loads if load.request_id in self._followed]
        return [(followed, followed.claim) for followed in chosen if followed.claim is not None]

    def finished(self, request_id: str) -> None:
        """The request has ended, in whatever state it was."""
        never_sent = self._loads.pop(request_id, None) is not None
        followed = self._followed.get(request_id)
        if followed is None:
            return
        followed.ended = True
        if not followed.ordered or never_sent:
            self._settle(request_id, DeclineReason.ABORTED)
        if followed.settled:
            self._followed.pop(request_id, None)
        # Otherwise its load is with the workers, whose news come behind the end of a request that needs one step.

    # What the workers say.

    def hear(self, news: WorkerNews) -> None:
        if news.self_test is not None:
            self._judge_self_test(news.self_test)
        for donor, ranks in news.durable.items():
            self._durable_ranks[donor] = self._durable_ranks.get(donor, 0) + ranks
            if self._durable_ranks[donor] >= self._ranks:
                self._offer(donor)
        for donor in (*news.gone, *news.not_kept):
            self._forget(donor)
        for request_id, reason in news.failed.items():
            self._settle(request_id, reason)
        for request_id, landed in news.landed.items():
            if request_id not in news.failed:
                self._confirm(request_id, landed.tokens, landed.bytes)

    def check_integrity(self) -> None:
        self.provider.check_integrity()
        assert set(self._loads) <= set(self._followed), "a load is ordered for a request that is gone"
        assert set(self._captured) <= set(self._known), "a donor is being captured that nobody knows"

    @property
    def open_requests(self) -> int:
        return len(self._followed)

    # Steps.

    def _claim(self, request: Any, computed_tokens: int) -> int | None:
        followed = self._planned(request, computed_tokens)
        if followed is None:
            return 0
        if followed.claim is None:
            self._settle_unused(followed)
            return 0
        return self._admit(followed, followed.claim)

    def _planned(self, request: Any, computed_tokens: int) -> FollowedRequest | None:
        """The request with its claim, if it has one; None where nothing may be reused for it."""
        followed = self._followed.get(request.request_id)
        if followed is None:
            answer = self._follow(request)
            if isinstance(answer, DeclineReason):
                return None
            followed = self._followed[request.request_id] = answer
        if followed.mode == "off" or followed.settled or followed.ordered:
            return None  # Also one that was preempted: what it has, it finds under its own keys.
        if followed.claim is not None and followed.claim.start != computed_tokens:
            self._withdraw(followed)
        asked = (self._generation, computed_tokens)
        if followed.claim is None and followed.asked != asked:
            followed.asked = asked
            followed.claim = self._find(followed, computed_tokens)
        return followed

    def _find(self, followed: FollowedRequest, computed_tokens: int) -> Claim | None:
        materialize = self.proved and followed.mode == "on"
        result = self.provider.lookup(
            LookupRequest(followed.request_id, followed.namespace, followed.token_ids, computed_tokens)
        )
        followed.looked_up = True
        followed.found, followed.reason = result.plan is not None, result.reason
        plan = result.loadable_plan
        if plan is None or not materialize:
            return None
        claim = self._claim_for(plan)
        if claim is None:
            followed.found, followed.reason = False, DeclineReason.TOO_FEW_TOKENS_SAVED
        return claim

    def _claim_for(self, plan: Plan) -> Claim | None:
        if self.room is None:
            return _without_rows(claim_of(plan, self._block_size), self._block_size)
        choice = choose_policy(self._settings.quality_tier, plan, probing=False)
        if choice is None:
            return None
        decided = choice.policy.plan(plan, budget=choice.budget, probe=None, block=1)
        return claim_of(decided.plan, self._block_size, decided.correction)

    def _admit(self, followed: FollowedRequest, claim: Claim) -> int | None:
        if not all((followed.namespace.digest, span.donor_id) in self._known for span in claim.spans):
            self._withdraw(followed)
            return None  # A donor went while the request waited: plan again in the next step.
        if self.room is not None and not self.room.take(claim):
            followed.postponed += 1
            if self.room.could_ever_hold(claim) and followed.postponed <= MOST_POSTPONEMENTS:
                return None
            self._drop_claim(followed, DeclineReason.ALLOCATION_FAILED)
            return 0
        if followed.approximate_from is None:
            followed.taint(claim.first_approximate, self._block_size)
        return claim.end - claim.start

    def _withdraw(self, followed: FollowedRequest) -> None:
        """The exact prefix is another than when the plan was made: plan again."""
        followed.claim, followed.asked = None, None
        followed.untaint()

    def _drop_claim(self, followed: FollowedRequest, reason: DeclineReason) -> None:
        self._withdraw(followed)
        self._settle(followed.request_id, reason)

    def _capture_of(self, followed: FollowedRequest, block_ids_of: Callable[[str], list[int]]) -> Capture | None:
        exact = followed.approximate_from if followed.approximate_from is not None else followed.token_ids.size
        if not followed.capture or exact < self._settings.min_span_tokens:
            return None
        tokens = followed.token_ids[:exact]
        donor = (followed.namespace.digest, donor_id_of(tokens))
        if donor in self._known:
            return None
        capture = Capture(donor[1], followed.namespace, block_ids_of(followed.request_id), tokens)
        self._known[donor] = followed.namespace
        self._captured[donor] = (followed.namespace, tokens)
        return capture

    def _captures_in(self, scheduled: dict[str, int], block_ids_of: Callable[[str], list[int]]) -> Iterator[Capture]:
        for request_id, tokens in scheduled.items():
            followed = self._followed.get(request_id)
            if followed is None or followed.captured or not _completes_prompt(followed.request, tokens):
                continue
            followed.captured = True
            capture = self._capture_of(followed, block_ids_of)
            if capture is not None:
                yield capture

    def _offer(self, donor: tuple[str, str]) -> None:
        self._durable_ranks.pop(donor, None)
        waiting = self._captured.pop(donor, None)
        if waiting is None:
            return
        namespace, tokens = waiting
        result = self.provider.offer_donor(DonorOffer(donor[1], namespace, tokens))
        if result.reason is not None:
            self._known.pop(donor, None)
        self._generation += 1

    def _forget(self, donor: tuple[str, str]) -> None:
        self._durable_ranks.pop(donor, None)
        self._captured.pop(donor, None)
        namespace = self._known.pop(donor, None)
        if namespace is not None:
            self.provider.forget_donor(namespace, donor[1])

    def _judge_self_test(self, failed: str) -> None:
        if failed:
            self.provider.restrict_to_discovery(failed)
        else:
            self.proved = True
            self._generation += 1

    def _confirm(self, request_id: str, tokens: int, moved_bytes: int) -> None:
        followed = self._followed.get(request_id)
        if followed is None or followed.settled:
            return
        self.provider.report_outcome(
            Outcome(request_id, OutcomeKind.MATERIALIZED, confirmed_tokens=tokens, confirmed_bytes=moved_bytes)
        )
        self._settled(followed)

    def _settle(self, request_id: str, reason: DeclineReason) -> None:
        """Say once that the request was served without reuse, if it was ever looked up."""
        followed = self._followed.get(request_id)
        if followed is None or followed.settled:
            return
        if followed.looked_up:
            self.provider.report_outcome(Outcome(request_id, OutcomeKind.DECLINED, reason=reason))
        self._settled(followed)

    def _settled(self, followed: FollowedRequest) -> None:
        followed.settled = True
        if followed.ended:
            self._followed.pop(followed.request_id, None)

    def _settle_unused(self, followed: FollowedRequest) -> None:
        """The request is admitted without reuse: say why."""
        if followed.settled:
            return
        if not followed.found:
            outcome = Outcome(followed.request_id, OutcomeKind.DECLINED, reason=followed.reason)
        else:
            why = None if self.proved else DeclineReason.SELF_TEST_FAILED
            outcome = Outcome(followed.request_id, OutcomeKind.DISCOVERY_ONLY, reason=why)
        self.provider.report_outcome(outcome)
        self._settled(followed)


def _completes_prompt(request: Any, tokens: int) -> bool:
    return bool(request.num_computed_tokens + tokens >= request.num_prompt_tokens)


def _without_rows(claim: Claim | None, block_size: int) -> Claim | None:
    """What of a claim can be had by the connector's own contract: spans that continue the exact prefix."""
    if claim is None or not claim.rows:
        return claim
    end = claim.rows[0][0] // block_size * block_size
    spans = tuple(
        replace(span, length=min(span.target_end, end) - span.target_start)
        for span in claim.spans
        if span.target_start < end
    )
    return Claim(claim.start, end, spans, ()) if spans and end > claim.start else None
