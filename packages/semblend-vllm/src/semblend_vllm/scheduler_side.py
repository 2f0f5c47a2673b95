"""The scheduler's half: decides on token ids alone what a request may reuse, and keeps the books."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from semblend_core import (
    AuditSink,
    DeclineReason,
    LoadAdvertised,
    LookupRequest,
    SelfTestResult,
    SemanticLookupProvider,
    Settings,
)
from semblend_vllm.capturing import Capturing
from semblend_vllm.claiming import Claiming
from semblend_vllm.claims import Claim
from semblend_vllm.donor_books import DonorBooks
from semblend_vllm.fetching import FetchState, Waiting
from semblend_vllm.following import Follower
from semblend_vllm.ledger import RequestLedger
from semblend_vllm.long_claims import LongClaims, corrected
from semblend_vllm.messages import Capture, Correct, Load, StepWork, WorkerNews
from semblend_vllm.requests import FollowedRequest
from semblend_vllm.rows import RowRoom
from semblend_vllm.same_process import Neighbour

logger = logging.getLogger(__name__)

MOST_POSTPONEMENTS = 50
"""Steps that a request waits for room for its rows before it is served cold."""
Arguments = ParamSpec("Arguments")


def _contained(
    method: Callable[Concatenate[SchedulerSide, Arguments], None],
) -> Callable[Concatenate[SchedulerSide, Arguments], None]:
    """Whatever goes wrong in our books must not end the engine."""

    @wraps(method)
    def guarded(self: SchedulerSide, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception:
            logger.exception("%s failed", method.__name__)

    return guarded


class SchedulerSide:
    """Called on the scheduler's thread only. Nothing raises into the engine: what fails is served cold, and counted."""

    def __init__(
        self,
        provider: SemanticLookupProvider,
        settings: Settings,
        block_size: int,
        follow: Follower,
        ranks: int = 1,
        neighbour: Neighbour | None = None,
        correcting: bool = True,
        audit: AuditSink | None = None,
    ) -> None:
        """``correcting``: whether KV can be corrected inside the forward."""
        self._audit = audit
        self.provider, self._block_size, self._follow = provider, block_size, follow
        self._neighbour = neighbour
        self.donors = DonorBooks(provider, ranks, audit)
        self._claiming = Claiming(settings, block_size, correcting)
        self._capturing = Capturing(settings, self.donors)
        self._waiting = Waiting(ranks) if settings.store_disk_bytes else None
        self._ledger = RequestLedger(provider)
        self._loads: dict[str, tuple[Load, Correct | None]] = {}
        self.long_claims = LongClaims()
        self._failed: list[FollowedRequest] = []
        """Requests whose load did not come: their blocks hold nothing of use."""
        self._tested: dict[int, SelfTestResult] = {}
        self._ranks = ranks

    @property
    def room(self) -> RowRoom | None:
        """What a step has for rows; None where our scheduler is not in charge and rows cannot be had."""
        return self._claiming.room

    @room.setter
    def room(self, room: RowRoom) -> None:
        self._claiming.room = room

    @property
    def proved(self) -> bool:
        """The workers' self-test passed; until then plans are found and not loaded."""
        return len(self._tested) == self._ranks and all(result.passed for result in self._tested.values())

    @_contained
    def catch_up(self) -> None:
        """Before a step: hear what a worker in this process has not told yet."""
        news = None if self._neighbour is None else self._neighbour.take_news()
        if news is not None:
            self.hear(news)
        self.donors.offer_some()

    # vLLM's calls, in the order in which a request meets them.

    def claim(self, request: Any, computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens behind the exact prefix that the engine may count on; None: ask again in the next step.

        And whether the request must wait for them with its blocks in hand.
        """
        try:
            return self._claim(request, computed_tokens)
        except Exception:
            logger.exception("no reuse for %s", request.request_id)
            self._give_up(request.request_id)
            return 0, False

    def may_plan(self, request: Any) -> bool:
        """Whether it is still open what this request reuses."""
        try:
            return self._open(request) is not None
        except Exception:
            logger.exception("no reuse for %s", request.request_id)
            return False

    def prepare(self, request: Any, computed_tokens: int) -> Claim | None:
        """Make the plan of a request that may be admitted next, so that room can be kept for its rows."""
        try:
            followed = self._planned(request, computed_tokens)  # What finds nothing now may find something later.
        except Exception:
            logger.exception("no reuse for %s", request.request_id)
            self._give_up(request.request_id)
            return None
        if followed is None or followed.claim is None or self._fetch_of(followed, followed.claim) != "there":
            return None
        return followed.claim

    @_contained
    def allocated(self, request: Any, block_ids: list[int], external_tokens: int) -> None:
        followed = self._ledger.get(request.request_id)
        if followed is None or followed.claim is None or followed.ordered:
            return  # vLLM also tells of requests that it resumes, whose approximate KV is theirs for good.
        if external_tokens <= 0:
            # The engine found a use for its own cache, or none for ours.
            self._drop_claim(followed, DeclineReason.ALLOCATION_FAILED)
            return
        claim, followed.ordered = followed.claim, True
        if self._waiting is not None:
            self._waiting.done_with(followed.request_id)
        load = Load(
            followed.request_id,
            followed.namespace,
            block_ids,
            claim.spans,
            claim.reused_tokens,
            official=self.room is None,
        )
        if claim.steps:
            self.long_claims.begin(followed, claim, load)
        else:
            self._loads[followed.request_id] = (load, corrected(load, claim, claim.rows))
        if self._audit is not None:
            self._audit.emit(
                LoadAdvertised(
                    request_id=followed.request_id,
                    namespace=followed.namespace,
                    tokens=claim.reused_tokens,
                    spans=len(claim.spans),
                )
            )

    def step_work(self, scheduled: dict[str, int], block_ids_of: Callable[[str], list[int]]) -> StepWork:
        """What the workers do in the step that computes ``scheduled`` tokens per request."""
        work = StepWork(forget=self.donors.take_forgotten())
        for request_id in [each for each in self._loads if each in scheduled]:
            load, correction = self._loads.pop(request_id)
            work.loads.append(load)
            work.corrections += [] if correction is None else [correction]
        self.long_claims.add_work(work)
        if self._waiting is not None:
            work.fetches, work.unwanted = self._waiting.take_orders()
        try:
            work.captures += self._captures_in(scheduled, block_ids_of)
        except Exception:
            logger.exception("nothing is captured in this step")
        return work

    def claims_in(self, work: StepWork) -> list[tuple[FollowedRequest, Claim]]:
        """The requests of this step whose rows must be computed in it."""
        chosen = [self._ledger.get(load.request_id) for load in work.loads]
        found = [(each, each.claim) for each in chosen if each is not None and each.claim is not None]
        return [(followed, claim) for followed, claim in found if not claim.steps]

    def first_approximate(self, request: Any) -> int | None:
        """The position from which on the request's KV is approximate, or is about to be; None: all is exact."""
        followed = self._ledger.get(request.request_id)
        return None if followed is None else followed.approximate_from

    def take_failed(self) -> list[FollowedRequest]:
        """Requests that must be computed from their exact prefix on: what they count on never came."""
        failed, self._failed = self._failed, []
        return [followed for followed in failed if not followed.ended]

    @_contained
    def finished(self, request_id: str) -> None:
        """The request has ended, in whatever state it was."""
        never_sent = self._loads.pop(request_id, None) is not None or self.long_claims.never_sent(request_id)
        self.long_claims.drop(request_id)
        if self._waiting is not None:
            self._waiting.cancel(request_id)
        followed = self._ledger.end(request_id)
        if followed is not None and (not followed.ordered or never_sent):
            self._ledger.decline(followed, DeclineReason.ABORTED)

    @_contained
    def reset(self) -> None:
        """vLLM's caches were reset, since the weights changed: no donor is of use any longer."""
        self._follow.new_weights()
        for followed in self._ledger:  # Its namespace is that of the old weights, and its KV is of new ones too.
            followed.wish = replace(followed.wish, capture=False)
        self.donors.forget_all()

    # What the workers say.

    @_contained
    def hear(self, news: WorkerNews) -> None:
        for request_id, reason in news.failed.items():  # First: what follows may fail, and these must not be lost.
            self._load_failed(request_id, reason)
        for request_id, landed in news.landed.items():
            if request_id not in news.failed:
                self._ledger.confirm(request_id, landed.tokens, landed.bytes)
        self._judge_self_test(news.self_test)
        if news.no_correction and self._claiming.correcting:
            self._claiming.correcting = False
            logger.warning("several places at once are reused by the fast tier only: %s", news.no_correction)
        self.donors.recovered(news.recovered)
        for donor, ranks in news.durable.items():
            self.donors.durable(donor, ranks)
        for donor, why in news.lost.items():
            self.donors.lost(donor, why)
        if self._waiting is not None:
            self._waiting.arrived(news.fetched)

    def check_integrity(self) -> None:
        self.provider.check_integrity()
        self.donors.check_integrity()
        assert all(request_id in self._ledger for request_id in self._loads), (
            "a load is ordered for a request that is gone"
        )

    @property
    def expects_news(self) -> bool:
        """Whether a worker in another process will soon have something to tell that no request waits for."""
        is_here = self._neighbour is not None and self._neighbour.is_here
        return self.donors.any_coming and not is_here

    @property
    def open_requests(self) -> int:
        return len(self._ledger)

    # Steps.

    def _claim(self, request: Any, computed_tokens: int) -> tuple[int | None, bool]:
        followed = self._planned(request, computed_tokens)
        if followed is None:
            return 0, False
        if followed.claim is None:
            self._serve_without(followed)
            return 0, False
        long = bool(followed.claim.steps)
        tokens = self._admit(followed, followed.claim)
        return tokens, long and bool(tokens)

    def _serve_without(self, followed: FollowedRequest) -> None:
        if followed.found:
            self._ledger.found_only(followed, None if self.proved else self._why_not_proved())
        else:
            self._ledger.decline(followed, followed.lost or followed.reason or DeclineReason.NO_SPANS)

    def _planned(self, request: Any, computed_tokens: int) -> FollowedRequest | None:
        """The request with its claim, if it has one; None where nothing may be reused for it."""
        followed = self._open(request)
        if followed is None:
            return None
        if followed.claim is not None and followed.claim.start != computed_tokens:
            self._withdraw(followed)
        asked = (self.donors.generation, computed_tokens)
        if followed.claim is None and followed.asked != asked:
            followed.asked = asked
            followed.claim = self._find(followed, computed_tokens)
        return followed

    def _open(self, request: Any) -> FollowedRequest | None:
        """The request, if it is still open what it reuses."""
        followed = self._ledger.get(request.request_id)
        if followed is None:
            answer = self._follow(request)
            if isinstance(answer, DeclineReason):
                self._ledger.refuse(request.request_id, answer)
                return None
            followed = answer
            self._ledger.add(followed)
            self.donors.seen(followed.namespace)
        if followed.wish.mode == "off" or followed.settled or followed.ordered:
            return None  # Also one that was preempted: what it has, it finds under its own keys.
        return followed

    def _find(self, followed: FollowedRequest, computed_tokens: int) -> Claim | None:
        followed.looked_up = True
        result = self.provider.lookup(
            LookupRequest(followed.request_id, followed.namespace, followed.token_ids, computed_tokens)
        )
        followed.found, followed.reason = result.plan is not None, result.reason
        plan = result.loadable_plan
        if plan is None or not self.proved or followed.wish.mode != "on":
            return None
        # Rows of a step without their request would not count towards vLLM's limit of adapters in a step.
        claim, reason = self._claiming.claim_for(plan, may_wait=followed.request.lora_request is None)
        if claim is None:
            followed.found, followed.reason = False, reason
        return claim

    def _admit(self, followed: FollowedRequest, claim: Claim) -> int | None:
        lost = [self.donors.why_lost(followed.namespace, span.donor_id) for span in claim.spans]
        followed.lost = next(filter(None, lost), None)
        if followed.lost is not None:
            self._withdraw(followed)
            return None  # A donor went while the request waited: plan again in the next step.
        fetch = self._fetch_of(followed, claim)
        if fetch == "given up":
            self._drop_claim(followed, DeclineReason.LOAD_FAILED)
            return 0
        if fetch == "coming":
            return None
        if self.room is not None and not claim.steps and not self.room.take(claim):
            followed.postponed += 1
            if followed.postponed <= MOST_POSTPONEMENTS:
                return None
            self._drop_claim(followed, DeclineReason.ALLOCATION_FAILED)
            return 0
        if followed.approximate_from is None:
            followed.taint(claim.first_approximate, self._block_size)
        return claim.end - claim.start

    def _fetch_of(self, followed: FollowedRequest, claim: Claim) -> FetchState:
        if self._waiting is None:
            return "there"
        return self._waiting.state(followed.request_id, followed.namespace, claim.spans)

    def _withdraw(self, followed: FollowedRequest) -> None:
        """The exact prefix is another than when the plan was made: plan again."""
        followed.claim, followed.asked = None, None
        if self._waiting is not None:
            self._waiting.cancel(followed.request_id)
        followed.untaint()

    def _drop_claim(self, followed: FollowedRequest, reason: DeclineReason) -> None:
        self._withdraw(followed)
        self._ledger.decline(followed, reason)

    def _give_up(self, request_id: str) -> None:
        followed = self._ledger.get(request_id)
        if followed is not None:
            if not followed.ordered:
                self._withdraw(followed)
            self._ledger.decline(followed, DeclineReason.INTERNAL_ERROR)

    def _load_failed(self, request_id: str, reason: DeclineReason) -> None:
        followed = self._ledger.get(request_id)
        if followed is not None:
            if self.room is not None:  # Otherwise vLLM itself computes what did not come.
                self._failed.append(followed)
            self._ledger.decline(followed, reason)

    def _captures_in(self, scheduled: dict[str, int], block_ids_of: Callable[[str], list[int]]) -> Iterator[Capture]:
        for request_id, tokens in scheduled.items():
            followed = self._ledger.get(request_id)
            capture = None if followed is None else self._capture_of(followed, tokens, block_ids_of)
            if capture is not None:
                yield capture

    def _capture_of(
        self, followed: FollowedRequest, tokens: int, block_ids_of: Callable[[str], list[int]]
    ) -> Capture | None:
        # After a failure only prompts that become donors are looked at.
        proved = self.proved or self._failed_self_test
        return self._capturing.after_step(followed, tokens, block_ids_of, proved=proved)

    @property
    def _failed_self_test(self) -> bool:
        return any(result.failed for result in self._tested.values())

    def _judge_self_test(self, results: dict[int, SelfTestResult]) -> None:
        before = self.proved
        self._tested |= results
        for result in results.values():
            if result.failed or self.proved:
                self.provider.note_self_test(result)
        self.donors.generation += self.proved and not before

    def _why_not_proved(self) -> DeclineReason:
        return DeclineReason.SELF_TEST_FAILED if self._failed_self_test else DeclineReason.SELF_TEST_PENDING
