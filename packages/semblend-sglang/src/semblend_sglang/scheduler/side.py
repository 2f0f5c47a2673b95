"""What SemBlend does at each of SGLang's calls.

Runs on the scheduler's thread. Nothing raises into the engine: what fails is prefilled, and counted with its reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from torch import Tensor

from semblend_core import DeclineReason, Plan, SemanticLookupProvider, Settings, TokenIds
from semblend_core.kv import RotationProof
from semblend_core.serving import (
    Claim,
    CostGate,
    Finding,
    HotOpenings,
    Lineage,
    Namespaces,
    Seeker,
    SelfTest,
    Stage,
    claim_by_tier,
    contain,
    tokens_to_keep,
)
from semblend_core.serving.tree import ExactTree, InPlace, KeptDonors, Load, Loading, SlotPool, TreeDonors, TreeLineages
from semblend_sglang.scheduler.background import Asker, Background
from semblend_sglang.scheduler.repeats import Repeats
from semblend_sglang.scheduler.requests import Asked, SglangLife, SglangRequests

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

MOST_POSTPONEMENTS = 2
"""Rounds that a request waits for more room for its rows, or for another try: who stands behind it waits too."""
MOST_WAITS_FOR_SAME = 8
"""Rounds that a request waits for another with the same opening, which is about to leave its KV for both."""
MOST_REPEATED = 8
"""Waiting requests that are looked up again because there is more to be found: those in front."""


@dataclass(frozen=True)
class BatchLimits:
    """What one of SGLang's batches can hold."""

    row_tokens: int
    """Of one request, beside at least a page of its own."""
    sequences: int
    """Rows included: SGLang's buffers have no room for more."""
    with_decoding: bool = False
    """Whether requests that decode share the batch of those that are prefilled."""


class Side:
    """Knows SGLang's requests by their lives. A request that has none, as another goes by its id, is left alone."""

    def __init__(
        self,
        provider: SemanticLookupProvider,
        settings: Settings,
        tree: ExactTree,
        pool: SlotPool,
        limits: BatchLimits,
        namespaces: Namespaces,
        kept: KeptDonors | None = None,
        costs: CostGate | None = None,
    ) -> None:
        """``costs``: judges plans by the batches it is told of; without it every plan is taken."""
        self.costs = costs or CostGate(Settings(cost_gate=False), step_tokens=0)
        self.provider, self.settings, self.tree, self.pool, self.limits = provider, settings, tree, pool, limits
        self.donors = TreeDonors(provider, settings, tree, pool, kept)
        self._loading = Loading(tree, pool, self.donors)
        self.lineages = TreeLineages(tree)
        self.hot: HotOpenings[Asker] = HotOpenings(settings.exact_after)
        self.background = Background(self.hot, tree, lambda tokens: provider.note_background(tokens))
        self.requests = SglangRequests(
            namespaces, lambda outcome: provider.report_outcome(outcome), self._loading.stop_fetching
        )
        self.self_test = SelfTest(1, lambda found: contain("noting the self-test", provider.note_self_test, found))
        self._proof = RotationProof(pool.rotation)
        self._seeker = Seeker(
            provider,
            self.requests,
            self.donors.book,
            self.self_test,
            self._claim_for,
            self.donors.drop_missing,
            may_pay=self.costs.may_pay,
        )
        self.on_change: Callable[[], None] = lambda: None
        """Called after outcomes were reported, to bring the metrics up to date."""
        self.loads: dict[SglangLife, Load] = {}
        """Of admitted requests that no forward has seen yet."""
        self._landing: list[tuple[SglangLife, Load]] = []
        self.times_emptied = 0
        """How often the exact tree was emptied."""
        self._old_weights_in_tree = False
        self._lookups, self._searches = Repeats(MOST_REPEATED), Repeats(MOST_REPEATED)
        """For donors, and for lineages."""

    # --- A waiting request: asked in every round until it is admitted ------------------------------------------------

    def match(self, asked: Asked) -> SglangLife | None:
        """The request, if it may count on more than its exact prefix: on what lies in place, and on a claim behind."""
        try:
            return self._match(asked)
        except Exception:
            logger.exception("no reuse for %s", asked.request.rid)
            life = self.requests.of_request(asked.request)
            if life is not None:
                contain("declining a request", self.requests.decline, life, DeclineReason.INTERNAL_ERROR)
            return None

    def promised(self, request: Any) -> SglangLife | None:
        """The life of a request that may count on a claim, on what lies in place, or on both."""
        life = self.requests.of_request(request)
        return life if life is not None and life.is_open and (life.claim or life.in_place) else None

    def claimed(self, request: Any) -> SglangLife | None:
        """The life of a request that may count on a claim."""
        life = self.requests.of_request(request)
        return life if life is not None and life.stage is Stage.CLAIMED else None

    def arrival(self, life: SglangLife) -> Literal["there", "coming", "given up"]:
        """Whether what was claimed for a request can be moved now, or will be soon. Otherwise it is served cold."""
        return self._or_decline(self._loading.arrival, life) or "given up"

    def may_wait(self, life: SglangLife) -> bool:
        """Whether a request that did not get what it claims in this round is worth another."""
        return life.postpone(MOST_POSTPONEMENTS)

    def waits_for_same(self, life: SglangLife) -> bool:
        """Whether another request brings most of its claim soon, so that both share it. For a few rounds."""
        if life.claim is None or not self.lineages.brings_the_same(life, life.claim):
            return False
        life.waited_for_same += 1
        return life.waited_for_same <= MOST_WAITS_FOR_SAME

    def give_up(self, life: SglangLife, reason: DeclineReason) -> None:
        """Its spans are not to be had. What lies in place is; without that it is served cold."""
        if life.in_place is None:
            self.requests.decline(life, reason)
        elif life.stage is Stage.CLAIMED:
            asked = life.question
            self.requests.withdraw(life)
            life.question = asked  # The same would be found again.

    def rows_of_admitted(self) -> int:
        """Sequences that requests of the batch under way have besides their own."""
        return sum(len(loaded.claim.rows) for loaded in self.loads.values())

    def leave_queue(self, request_id: str) -> None:
        self.requests.leave_queue(request_id)
        self._changed()

    # --- Admission ---------------------------------------------------------------------------------------------------

    def hold(self, life: SglangLife) -> None:
        """SGLang is about to take the request: what it counts on in place must not make room for it."""
        self.lineages.hold(life)

    def admit(self, life: SglangLife) -> Tensor | None:
        """Private slots of the whole claim, filled with what is reused; None: the request computes that."""
        loaded = self._or_decline(self._loading.load, life)
        if loaded is None:
            return None
        self.requests.load(life)
        self.loads[life] = loaded
        life.approximate_from = life.first_span if life.in_place is None else life.in_place.start
        self.lineages.grow(life)
        return loaded.slots

    def withdraw(self, life: SglangLife) -> None:
        """SGLang did not take the request after all: it asks again in the next round, but does not copy for ever."""
        life.restore_insert()
        self.lineages.release(life)
        loaded = self.loads.pop(life, None)
        if loaded is not None:
            self.tree.free(loaded.slots)
            self.requests.take_back(life)
            if not self.may_wait(life):
                self.give_up(life, DeclineReason.ALLOCATION_FAILED)

    def admitted(self, request: Any) -> None:
        """SGLang took the request, with or without reuse."""
        life = self.requests.of_request(request)
        if life is None:
            return
        self._loading.stop_fetching(life)
        for repeats in (self._lookups, self._searches):
            repeats.one_less_in_front()
        in_place = life.in_place if life.held else None
        if in_place is not None:
            self._asked_for(life, [stretch.lineage for stretch in in_place.stretches], in_place.end)
        if in_place is not None and life.is_queued:
            self.give_up(life, DeclineReason.ALLOCATION_FAILED)
            self.requests.take_in_place(life, in_place.length)
            life.approximate_from = in_place.start
        elif life.is_queued:
            self.requests.withdraw(life)
            self.requests.serve_without(life, Stage.COLD, self.self_test.why_not)
            self.requests.compute(life)

    def load_of(self, request: Any) -> Load | None:
        """What was loaded for an admitted request that no forward has seen yet."""
        life = self.requests.of_request(request)
        return None if life is None else self.loads.get(life)

    # --- The forward -------------------------------------------------------------------------------------------------

    def start(self, request: Any) -> Load | None:
        """The request is about to be computed for the first time: which of its claim it computes itself."""
        life = self.requests.of_request(request)
        loaded = None if life is None else self.loads.pop(life, None)
        if life is not None and loaded is not None:
            self._landing.append((life, loaded))
            self.confirm_landed()
        return loaded

    def confirm_landed(self) -> None:
        """Report what has arrived by now."""
        waiting = []
        for life, loaded in self._landing:
            if loaded.done is not None and not loaded.done.query():
                waiting.append((life, loaded))
                continue
            moved = loaded.claim.reused_tokens
            in_place = 0 if life.in_place is None else life.in_place.length
            self.requests.confirm(life, in_place + moved, moved * self.pool.token_bytes)
        self._landing = waiting

    # --- What SGLang's own cache took --------------------------------------------------------------------------------

    def cached(self, asked: Asked, read_slots: Callable[[], Tensor]) -> None:
        """The exact tree holds the whole prompt now: it may become a donor."""
        contain("taking a prompt for a donor", self._cached, asked, read_slots)

    def may_keep(self, life: SglangLife) -> bool:
        """Whether what an approximate request has computed is fit to go on from: what it reused has landed."""
        self.confirm_landed()
        return life.stage is Stage.REUSING

    def keep(self, life: SglangLife, tokens: TokenIds, row: Tensor, owned: int) -> int:
        """An approximate request has computed ``tokens``, in these slots. How many of them the trees own now."""
        is_first = life.lineage is None
        owned = self.lineages.keep(life, tokens, row, owned)
        if is_first and life.lineage is not None:
            self._asked_for(life, [life.lineage], 0)
        return owned

    def released(self, request: Any) -> None:
        """The request's memory is given back: it has finished, was aborted, or was retracted and will be computed."""
        self.confirm_landed()
        life = self.requests.of_request(request)
        if life is not None:
            self.lineages.release(life)
            never_started = self.loads.pop(life, None) is not None  # Its slots go back with its row.
            self.requests.end(life, loading=not never_started)
            if never_started and request.output_ids:
                # A hook is not called, so nothing may be reused.
                why = "SGLang computed a request without its rows"
                logger.error("%s: %s. SemBlend only looks from now on", life.request_id, why)
                self.self_test.refuse(why)
        self._changed()

    def reset(self) -> None:
        """The exact tree was emptied, as for new weights: no donor is of use any longer."""
        self.times_emptied += 1
        self._old_weights_in_tree = False
        self.lineages.emptied()
        self._forget_donors()

    def weights_changed(self) -> None:
        """The exact tree was not emptied: what it holds may be of the old weights, and so may what grows from it."""
        if not self._old_weights_in_tree:
            logger.warning("SGLang changed its weights without a flush: until it is flushed no prompt becomes a donor")
        self._old_weights_in_tree = True
        self.lineages.new_weights()
        self._forget_donors()

    def close(self) -> None:
        contain("keeping the costs", self.costs.close)
        contain("the provider's close", self.provider.close)
        if self.donors.kept is not None:
            self.donors.kept.close()

    def check_integrity(self) -> None:
        """Raise AssertionError where the books do not agree. Between requests nothing may be left."""
        self.provider.check_integrity()
        self.lineages.shadow.check_integrity()
        for life in self.loads:
            assert self.requests.of_request(life.request) is life, "a load is ordered for a request that is gone"
            assert life.stage is Stage.LOADING, f"a load is ordered for a request that is {life.stage}"
            assert life.is_approximate, "relocated KV without the mark that keeps it out of the tree"

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _match(self, asked: Asked) -> SglangLife | None:
        life = self.requests.follow(asked, lambda life: contain("meeting a request", self.donors.meet, life))
        if life is None:
            return None
        if asked.unsupported is not None and life.is_queued:
            life.finding = life.finding or Finding(False)  # So that it is counted.
            self.requests.decline(life, DeclineReason.UNSUPPORTED_REQUEST)
        if not life.is_open:
            return None
        if asked.unsettled:
            self.requests.withdraw(life)
            life.in_place = None
            life.finding = Finding(False, DeclineReason.EXACT_PREFIX_ELSEWHERE)
            return None
        with self.costs.apart():
            life.in_place = self._find_in_place(life, asked.exact_tokens)
            reach = asked.exact_tokens if life.in_place is None else life.in_place.end
            self._seeker.seek(life, reach, self._may_ask)
        return self.promised(asked.request)

    def _find_in_place(self, life: SglangLife, exact_tokens: int) -> InPlace | None:
        if life.wish.mode != "on" or not self.self_test.passed:
            return None
        question = (self.lineages.generation, exact_tokens)
        known = life.in_place
        if known is not None and (known.start != exact_tokens or not self.lineages.still_there(known)):
            known, life.sought = None, None
        if life.sought == question or not self._searches.may_ask(life.sought is None, self.lineages.generation):
            return known
        life.sought = question
        return self.lineages.find(life, exact_tokens)

    def _claim_for(self, life: SglangLife, plan: Plan) -> Claim | DeclineReason:
        if not self.donors.are_of_same_tokens(life, plan):
            return DeclineReason.INTERNAL_ERROR
        life.first_span = plan.first_approximate_token
        return self.costs.choose(life.request_id, life.namespace, plan, self._fitting)

    def _fitting(self, plan: Plan, join_within: int) -> Claim | DeclineReason:
        """As much of a plan as one batch can hold."""
        # A correction would need a call inside every layer.
        claim = claim_by_tier(
            plan,
            self.settings.quality_tier,
            self.tree.page_size,
            limit=self.settings.recompute_limit,
            correcting=None,
            join_within=join_within,
        )
        if isinstance(claim, DeclineReason):
            return claim
        fitting = claim.within(self.limits.row_tokens, self.limits.sequences - 1, self.tree.page_size)
        return DeclineReason.TOO_FEW_TOKENS_SAVED if fitting is None else fitting.moved_only()

    def _or_decline(
        self, attempt: Callable[[SglangLife, Claim], Result | DeclineReason], life: SglangLife
    ) -> Result | None:
        """What ``attempt`` makes of the claim of ``life``; None where it declines or raises: it is served cold then."""
        assert life.claim is not None
        try:
            result = attempt(life, life.claim)
        except Exception:
            logger.exception("no reuse for %s", life.request_id)
            result = DeclineReason.INTERNAL_ERROR
        if not isinstance(result, DeclineReason):
            return result
        self.give_up(life, result)
        return None

    def _may_ask(self, life: SglangLife) -> bool:
        return self._lookups.may_ask(life.question is None, self.donors.book.generation)

    def _cached(self, asked: Asked, read_slots: Callable[[], Tensor]) -> None:
        life = self.requests.of_request(asked.request)
        if life is None or life.captured or life.is_approximate:
            return
        if asked.unsupported is not None or self._old_weights_in_tree:
            return  # Its KV may be of more than its tokens, or of other weights.
        life.captured = True
        tokens = tokens_to_keep(life, self.settings, self.tree.page_size)
        if tokens is None:
            return
        wanted = life.wish.makes_donor(self.settings)
        if wanted or self.self_test.wants_prompts:
            found = self.pool.test_keys(self._proof, lambda: read_slots()[: tokens.size], tokens)
            if found is not None and self.self_test.hear({0: found}):
                self.donors.book.generation += 1  # What was found and not loaded may be asked for again.
        if wanted:
            self.donors.add(life, tokens, read_slots)

    def _asked_for(self, life: SglangLife, lineages: list[Lineage], shared_tokens: int) -> None:
        asker = Asker(life.key, life.request.lora_id, life.request.http_worker_ipc)
        contain("counting who asks", self.hot.note, lineages, life.token_ids, shared_tokens, asker)

    def _forget_donors(self) -> None:
        self.requests.namespaces.new_weights()
        self.donors.clear()
        self.hot.clear()
        for life in self.requests:
            if life.is_queued:
                life.namespace = self.requests.namespaces.of(None, life.key.salt)
                self.requests.withdraw(life)
            else:
                life.captured = True  # A part of its KV may be of the old weights.

    def _changed(self) -> None:
        contain("the metrics", self.on_change)
