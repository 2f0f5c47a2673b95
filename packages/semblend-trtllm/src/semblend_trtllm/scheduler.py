"""The scheduler's half, at each of TensorRT-LLM's calls.

TensorRT-LLM puts whatever a connector loads into its exact tree under the request's own tokens, and cannot be told of a
load that failed. So only what is exact is promised: the KV of a donor that begins with the same tokens. And it is
promised only once it is held in memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from itertools import islice

from semblend_core import AuditSink, DeclineReason, LoadAdvertised, Plan, SemanticLookupProvider, Settings, Span
from semblend_core import TenantReport as Report
from semblend_core.serving import (
    Claim,
    DonorKeeper,
    Finding,
    LoadOrder,
    RequestBook,
    Seeker,
    SelfTest,
    Stage,
    StepWork,
    Tenants,
    WorkerNews,
    contained,
)
from semblend_trtllm import compat
from semblend_trtllm.meeting import Meeting
from semblend_trtllm.protocol import EngineRequest, StepOutput, StepRequest
from semblend_trtllm.requests import Follower, OwnedCapture, TrtllmRequest, exact_claim

logger = logging.getLogger(__name__)

MOST_HOLDERS = 8
"""Donors that are tried for one prefix: some may be on their way, or on disk."""
FORGOTTEN_AFTER_S = 600.0
"""A request that nobody mentioned for so long is gone: not every release tells of one that was cancelled."""
_SETTLED = (Stage.REUSING, Stage.COLD, Stage.DECLINED)


class SchedulerSide:
    """Called on the engine's thread only, but for ``purge_tenant`` and ``show_tenant``.

    Nothing raises into the engine: what fails is served cold, and counted.
    """

    def __init__(
        self,
        provider: SemanticLookupProvider,
        settings: Settings,
        block_size: int,
        follower: Follower,
        meeting: Meeting,
        most_tokens: Callable[[], int],
        audit: AuditSink | None = None,
    ) -> None:
        """``most_tokens``: how many may be promised and not in the engine's pages."""
        self.provider, self._settings, self._block_size = provider, settings, block_size
        self.follow, self._meeting, self._most_tokens, self._audit = follower, meeting, most_tokens, audit
        # What is loaded goes where it came from, so nobody has to prove before that keys can be turned.
        self.self_test = SelfTest(1, lambda found: self.provider.note_self_test(found), required=False)
        self.keeper = DonorKeeper(provider, settings, self.self_test, 1, audit)
        self.requests: RequestBook[TrtllmRequest] = RequestBook(
            lambda outcome: self.provider.report_outcome(outcome), lambda life: meeting.let_go(life.request_id)
        )
        self.seeker = Seeker(provider, self.requests, self.keeper.donors, self.self_test, self._claim_for)
        self.tenants = Tenants(provider, lambda: self.requests, (self.keeper,), audit)
        self.turn = threading.RLock()
        """Held while the engine is in one of the calls, so that an operator's command can wait for its turn."""
        self._to_purge: list[str] = []

    # --- TensorRT-LLM's calls, in the order in which a request meets them ----------------------------------------

    def promise(self, request: EngineRequest, num_computed: int) -> int:
        """How many tokens behind the engine's own ``num_computed`` are loaded: whole blocks, never the last token."""
        with self.turn:
            self.catch_up()
            return self._promise(request, num_computed) or 0

    @contained
    def _promise(self, request: EngineRequest, num_computed: int) -> int:
        life = self._follow(request)
        if life is None:
            return 0
        claim = None
        try:
            if not life.is_open:
                pass
            elif num_computed % self._block_size:
                # The engine copies a part of a block, and nothing says when: a load into it could come too early.
                life.finding = Finding(False, DeclineReason.STRICT_PREFIX_BOUNDARY)
            else:
                claim = self.seeker.seek(life, num_computed)
        except Exception:
            logger.exception("SemBlend goes on without it: a request could not be looked up")
            self._meeting.let_go(life.request_id)
            self.requests.decline(life, DeclineReason.INTERNAL_ERROR)
        if claim is None:
            self.requests.serve_without(life, Stage.COLD, self.self_test.why_not)
            self.requests.compute(life)
            return 0
        if self._audit is not None:
            self._audit.emit(LoadAdvertised(request_id=life.request_id, namespace=life.namespace, tokens=claim.length))
        life.promised = claim.length
        return claim.length

    @contained
    def allocated(self, request: EngineRequest, block_ids: list[int]) -> None:
        """The engine has given it these blocks: from here on what was promised is loaded."""
        with self.turn:
            life = self.requests.get(str(request.request_id))
            if life is None:
                return
            life.block_ids = list(block_ids)
            if life.stage is not Stage.CLAIMED or life.claim is None:
                return
            life.promised = taken = compat.honoured(request, life.promised)
            if not taken:
                self.requests.decline(life, DeclineReason.ALLOCATION_FAILED)
                self.requests.compute(life)
                return
            if taken < life.claim.length:  # To the token: the engine computes what is behind it, and no more.
                self.requests.shorten(life, exact_claim(life.claim.spans[0], taken))
                self._meeting.hold_less(life.request_id, life.claim.spans)
            self.requests.load(life)

    def step(self, output: StepOutput | None) -> StepWork:
        """What the worker does in the step that is about to run."""
        work = StepWork()
        with self.turn:
            self._fill(work, output)
        return work

    @contained
    def _fill(self, work: StepWork, output: StepOutput | None) -> None:
        self.catch_up()
        for life in self.requests:
            if life.stage is Stage.LOADING and not life.ordered:
                work.loads.append(self._load_order(life))
        if output is not None:
            for said in output.new_requests:
                self._scheduled(work, said, first=True)
            for said in output.cached_requests:
                self._scheduled(work, said, first=False)
        work.copied = self.keeper.take_copied()
        work.forget = self.keeper.take_forgotten()
        work.purge, self._to_purge = self._to_purge, []

    @contained
    def finished(self, request: EngineRequest) -> None:
        """The request is over, in whatever state. Its blocks may be another's in the next step."""
        with self.turn:
            request_id = str(request.request_id)
            life = self.requests.get(request_id)
            if life is not None:
                self._end(life)
            else:
                self._meeting.drop(request_id)

    # --- What the worker says ------------------------------------------------------------------------------------

    @contained
    def catch_up(self) -> None:
        """Hear what the worker has not told yet, and let go of requests that are over."""
        with self.turn:
            news = self._meeting.take_news()
            if news is not None:
                self.hear(news)
            self.keeper.offer_some()
            oldest = time.monotonic() - FORGOTTEN_AFTER_S
            for life in list(self.requests):
                if life.mentioned < oldest or (life.computed and life.stage in _SETTLED):
                    self._end(life)

    def hear(self, news: WorkerNews) -> None:
        with self.turn:
            for request_id, reason in news.failed.items():
                life = self.requests.get_loading(request_id)
                if life is not None:
                    self.requests.decline(life, reason)
            for request_id, landed in news.landed.items():
                life = self.requests.get_loading(request_id)
                if life is not None and request_id not in news.failed:
                    self.requests.confirm(life, landed.tokens, landed.bytes)
            self.self_test.hear(news.self_test)
            self.keeper.recovered(news.recovered)
            for name, ranks in news.durable.items():
                self.keeper.durable(name, ranks)
            for name, why in news.lost.items():
                self.keeper.lost(name, why)

    # --- An operator's commands, on threads of their own ---------------------------------------------------------

    def purge_tenant(self, tenant: str) -> Report:
        with self.turn:
            found = self.tenants.begin_purge(tenant)
            self._to_purge.append(tenant)  # Also for what a step under way is about to capture.
        self.tenants.finish_purge()
        return found + self._meeting.purge(tenant)

    def show_tenant(self, tenant: str) -> Report:
        with self.turn:
            return self.tenants.held_by(tenant) + self._meeting.held_by(tenant)

    def close(self) -> None:
        self.provider.close()

    def check_integrity(self) -> None:
        self.provider.check_integrity()
        self.keeper.captures.check_integrity()
        self.keeper.donors.prefixes.check_integrity()

    # --- Steps ---------------------------------------------------------------------------------------------------

    def _follow(self, request: EngineRequest) -> TrtllmRequest | None:
        request_id = str(request.request_id)
        earlier = self.requests.get(request_id)
        if earlier is not None:  # Its blocks were taken from it and it starts over, or another has its number.
            self._end(earlier)
        life = self.follow(request)
        if isinstance(life, DeclineReason):
            self.requests.refuse(request_id, life)
            self.requests.end_refused(request_id)  # The engine asks once, and may not tell of its end.
            return None
        self.keeper.meet(life.namespace)
        self.requests.add(life)
        return life

    def _claim_for(self, life: TrtllmRequest, plan: Plan) -> Claim | DeclineReason:
        """The longest prefix that a donor holds exactly. What else the plan has found is not loaded."""
        start, tokens = plan.exact_prefix_tokens, life.token_ids
        # The engine computes the last token, whose logits it needs; and it wants to be told of less than the prompt.
        longest = min((tokens.size - 1) // self._block_size * self._block_size, start + self._room())
        why = DeclineReason.EXACT_ONLY
        for name, held in islice(self.keeper.donors.prefixes.holders(life.namespace.digest, tokens), MOST_HOLDERS):
            end = min(held, longest) // self._block_size * self._block_size
            if end <= start:
                break
            if self.keeper.donors.get(life.namespace, name[1]) is None:
                continue  # It is on its way.
            span = Span(start, name[1], start, end - start)
            reason = self._meeting.hold(life.request_id, life.namespace, [span], tokens[:end])
            if reason is None:
                return exact_claim(span, end - start)
            why = reason
        return why

    def _room(self) -> int:
        """Tokens that may be promised beside those that are on their way."""
        on_their_way = sum(life.claim.length for life in self.requests if life.claim and life.stage not in _SETTLED)
        return max(0, self._most_tokens() - on_their_way) // self._block_size * self._block_size

    def _load_order(self, life: TrtllmRequest) -> LoadOrder:
        assert life.claim is not None
        life.ordered = True
        needed = -(-life.claim.end // self._block_size)
        return LoadOrder(
            life.request_id,
            life.namespace,
            life.block_ids[:needed],
            life.claim.spans,
            life.claim.reused_tokens,
            tell_engine=False,
        )

    def _scheduled(self, work: StepWork, said: StepRequest, *, first: bool) -> None:
        life = self.requests.get(str(said.request_id))
        if life is None or life.computed:
            return
        life.mentioned = time.monotonic()
        # The first report has all of its blocks, later ones those that came since.
        life.block_ids = list(said.new_block_ids) if first else life.block_ids + list(said.new_block_ids)
        end = said.computed_position + (life.promised if first else 0) + said.num_scheduled_tokens
        if end < len(life.prompt):
            return  # Another chunk follows.
        life.computed = True
        kept = self.keeper.decide(life)
        if kept is not None:
            needed = -(-kept.token_ids.size // self._block_size)
            blocks = life.block_ids[:needed]
            work.captures.append(
                OwnedCapture(kept.donor_id, life.namespace, blocks, kept.token_ids, request_id=life.request_id)
            )

    def _end(self, life: TrtllmRequest) -> None:
        self._meeting.let_go(life.request_id)
        self._meeting.drop(life.request_id)
        # A load that was ordered is carried out before the engine asks anything else, or never.
        self.requests.end(life, loading=False)
