"""What SemBlend does at each of SGLang's calls. Knows no version of SGLang: those translate to the calls here.

Runs on the scheduler's thread. Nothing raises into the engine: what fails is prefilled, and counted with its reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from torch import Tensor

from semblend_core import DeclineReason, Outcome, OutcomeKind
from semblend_sglang.claims import Claim
from semblend_sglang.finding import Finder
from semblend_sglang.following import Following
from semblend_sglang.guard import guarded
from semblend_sglang.loading import Load
from semblend_sglang.requests import Asked, FollowedRequest, NamespaceBook

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

MOST_POSTPONEMENTS = 8
"""Rounds that a request waits for room for its rows before it is served cold: who stands behind it waits too."""
MOST_REPEATED = 8
"""Waiting requests that are looked up again because a donor has come: those in front."""


class Side(Following):
    def __init__(self, finder: Finder, namespaces: NamespaceBook) -> None:
        super().__init__(namespaces)
        self.finder = finder
        self.provider, self.tree, self.pool = finder.provider, finder.tree, finder.pool
        self.on_change: Callable[[], None] = lambda: None
        """Called after outcomes were reported, to bring the metrics up to date."""
        self.loads: dict[str, Load] = {}
        """Admitted requests that no forward has seen yet."""
        self._landing: list[tuple[FollowedRequest, Load]] = []
        self.times_emptied = 0
        """How often the exact tree was emptied."""
        self._old_weights_in_tree = False
        self._repeated = (0, 0)
        """For this generation of donors: how many of those who wait in front were looked up again."""

    # --- A waiting request: asked in every round until it is admitted ---------------------------------------------

    def match(self, asked: Asked) -> Claim | None:
        """What may be counted on behind the exact prefix, if anything."""
        try:
            return self._match(asked)
        except Exception:
            logger.exception("no reuse for %s", asked.request_id)
            if self.of(asked.request) is not None:
                self.give_up(asked.request_id, DeclineReason.INTERNAL_ERROR)
            return None

    def claim_of(self, request_id: str) -> Claim | None:
        followed = self._followed.get(request_id)
        return followed.claim if followed is not None else None

    def donors_of(self, request_id: str) -> Literal["there", "coming", "given up"]:
        """Whether what was claimed for a request can be moved now, or will be soon. Otherwise it is served cold."""
        followed = self._followed.get(request_id)
        if followed is None or followed.claim is None:
            return "there"
        return self._or_give_up(self.finder.bring, followed, followed.claim) or "given up"

    def may_wait(self, request_id: str) -> bool:
        """Whether a request whose rows find no room in this batch is worth another round."""
        followed = self._followed.get(request_id)
        if followed is None:
            return False
        followed.postponed += 1
        return followed.postponed <= MOST_POSTPONEMENTS

    def rows_of_admitted(self) -> int:
        """Sequences that requests of the batch under way have besides their own."""
        return sum(len(loaded.claim.rows) for loaded in self.loads.values())

    def give_up(self, request_id: str, reason: DeclineReason) -> None:
        """The request is served cold after all."""
        followed = self._followed.get(request_id)
        if followed is not None:
            followed.claim, followed.coming = None, None
            self._settle(request_id, reason)

    # --- Admission -------------------------------------------------------------------------------------------------

    def admit(self, request_id: str) -> Tensor | None:
        """Private slots of the whole claim, filled with what is reused; None: the request is computed."""
        followed = self._followed.get(request_id)
        if followed is None or followed.claim is None:
            return None
        loaded = self._or_give_up(self.finder.load, followed, followed.claim)
        if loaded is None:
            return None
        self.loads[request_id] = loaded
        followed.approximate = True
        return loaded.slots

    def withdraw(self, request_id: str) -> None:
        """SGLang did not take the request after all: it asks again in the next round, but does not copy for ever."""
        loaded = self.loads.pop(request_id, None)
        followed = self._followed.get(request_id)
        if loaded is not None:
            self.tree.free(loaded.slots)
        if followed is not None:
            followed.restore_insert()
        if loaded is not None and not self.may_wait(request_id):
            self.give_up(request_id, DeclineReason.ALLOCATION_FAILED)

    def admitted(self, request_id: str) -> None:
        """SGLang took the request, with or without reuse."""
        followed = self._followed.get(request_id)
        if followed is None or followed.admitted:
            return
        followed.admitted, followed.coming = True, None
        self._seen.pop(request_id, None)
        generation, repeated = self._repeated
        self._repeated = (generation, max(0, repeated - 1))  # Somebody else has come to the front.
        if request_id not in self.loads:
            self._settle_unused(followed)

    def forbid_insert(self, request_id: str) -> None:
        """Set SGLang's own do-not-publish switch; it is put back when the request's memory is released."""
        followed = self._followed.get(request_id)
        if followed is not None:
            followed.forbid_insert()

    # --- The forward -----------------------------------------------------------------------------------------------

    def start(self, request_id: str) -> Load | None:
        """The request is about to be computed for the first time: which of its claim it computes itself."""
        loaded, followed = self.loads.pop(request_id, None), self._followed.get(request_id)
        if loaded is not None and followed is not None:
            self._landing.append((followed, loaded))
            self.confirm_landed()
        return loaded

    def confirm_landed(self) -> None:
        """Report what has arrived by now."""
        waiting = []
        for followed, loaded in self._landing:
            if loaded.done is not None and not loaded.done.query():
                waiting.append((followed, loaded))
                continue
            tokens = loaded.claim.reused_tokens
            moved = tokens * self.pool.token_bytes
            self._report(
                followed,
                Outcome(followed.request_id, OutcomeKind.MATERIALIZED, confirmed_tokens=tokens, confirmed_bytes=moved),
            )
        self._landing = waiting

    # --- What SGLang's own cache took ------------------------------------------------------------------------------

    def cached(self, asked: Asked, read_slots: Callable[[], Tensor]) -> None:
        """The exact tree holds the whole prompt now: it may become a donor."""
        try:
            self._cached(asked, read_slots)
        except Exception:
            logger.exception("the prompt of %s is no donor", asked.request_id)

    def released(self, request: Any) -> None:
        """The request's memory is given back: it has finished, was aborted, or was retracted and will be computed."""
        followed = self.of(request)
        self.confirm_landed()
        if followed is not None:
            if self.loads.pop(followed.request_id, None) is not None:  # Its slots go back with its row.
                self._settle(followed.request_id, DeclineReason.ABORTED)
                if request.output_ids:
                    self._was_not_started(followed)
            if followed.admitted and not any(entry[0] is followed for entry in self._landing):
                self._settle_unused(followed)
            self._forget(followed)
        self._changed()

    def reset(self) -> None:
        """The exact tree was emptied, as for new weights: no donor is of use any longer."""
        self.times_emptied += 1
        self._old_weights_in_tree = False
        self._forget_donors()

    def weights_changed(self) -> None:
        """The exact tree was not emptied: what it holds may be of the old weights, and so may what grows from it."""
        if not self._old_weights_in_tree:
            logger.warning("SGLang changed its weights without a flush: until it is flushed no prompt becomes a donor")
        self._old_weights_in_tree = True
        self._forget_donors()

    def _forget_donors(self) -> None:
        self._namespaces.new_weights()
        self.finder.forget_all()
        for followed in self._followed.values():
            if followed.admitted:
                followed.captured = True  # A part of its KV may be of the old weights.
            else:
                followed.namespace = self._namespaces.of(followed.key)
                followed.drop_claim()

    def close(self) -> None:
        self.finder.close()

    def check_integrity(self) -> None:
        """Raise AssertionError where the books do not agree. Between requests nothing may be left."""
        self.provider.check_integrity()
        assert set(self.loads) <= set(self._followed), "a load is ordered for a request that is gone"
        for request_id in self.loads:
            assert self._followed[request_id].approximate, "relocated KV without the mark that keeps it out of the tree"

    # --- Steps -----------------------------------------------------------------------------------------------------

    def _match(self, asked: Asked) -> Claim | None:
        followed = self._follow(asked)
        if followed is not None and asked.unsupported is not None and not followed.settled:
            followed.looked_up = True  # So that it is counted.
            self.give_up(asked.request_id, DeclineReason.UNSUPPORTED_REQUEST)
        if followed is None or followed.wish.mode == "off" or followed.settled or followed.admitted:
            return None
        if asked.unsettled:
            followed.drop_claim()
            followed.looked_up = True  # So that it is counted.
            followed.found, followed.reason = False, DeclineReason.EXACT_PREFIX_ELSEWHERE
            return None
        question = (self.finder.generation, asked.exact_tokens)
        if followed.claim is not None and followed.claim.start != asked.exact_tokens:
            followed.drop_claim()  # The exact cache has grown or shrunk: plan again.
        if followed.claim is None and followed.asked != question and self._may_ask(followed):
            followed.asked = question
            followed.claim = self.finder.find(followed, asked.exact_tokens)
        return followed.claim

    def _or_give_up(
        self,
        attempt: Callable[[FollowedRequest, Claim], Result | DeclineReason],
        followed: FollowedRequest,
        claim: Claim,
    ) -> Result | None:
        """What ``attempt`` gives; None where it declines or raises, and the request is served cold."""
        try:
            result = attempt(followed, claim)
        except Exception:
            logger.exception("no reuse for %s", followed.request_id)
            result = DeclineReason.INTERNAL_ERROR
        if isinstance(result, DeclineReason):
            self.give_up(followed.request_id, result)
            return None
        return result

    def _may_ask(self, followed: FollowedRequest) -> bool:
        """The first time always. With a long queue not everybody again for every new donor: those in front first."""
        if followed.asked is None:
            return True
        generation, repeated = self._repeated
        repeated = 0 if generation != self.finder.generation else repeated
        self._repeated = (self.finder.generation, min(repeated + 1, MOST_REPEATED))
        return repeated < MOST_REPEATED

    def _cached(self, asked: Asked, read_slots: Callable[[], Tensor]) -> None:
        followed = self.of(asked.request)
        if followed is None or followed.captured or followed.approximate:
            return
        if asked.unsupported is not None:
            return  # Its KV may be of more than its tokens.
        if self._old_weights_in_tree:
            return
        followed.captured = True
        self.finder.remember(followed, read_slots)

    # --- Outcomes, each reported once --------------------------------------------------------------------------------

    def _settle(self, request_id: str, reason: DeclineReason) -> None:
        followed = self._followed.get(request_id)
        if followed is not None and followed.looked_up:
            self._report(followed, Outcome(request_id, OutcomeKind.DECLINED, reason=reason))
        elif followed is not None:
            followed.settled = True

    def _settle_unused(self, followed: FollowedRequest) -> None:
        """The request was admitted without reuse: say why."""
        if followed.settled or not followed.looked_up:
            return
        if followed.reason is DeclineReason.EXACT_PREFIX_COVERS:
            self._report(followed, Outcome(followed.request_id, OutcomeKind.EXACT_PREFIX))
        elif not followed.found:
            self._report(followed, Outcome(followed.request_id, OutcomeKind.DECLINED, reason=followed.reason))
        else:
            why = self.finder.why_unproved
            self._report(followed, Outcome(followed.request_id, OutcomeKind.DISCOVERY_ONLY, reason=why))

    def _report(self, followed: FollowedRequest, outcome: Outcome) -> None:
        if not followed.settled:
            followed.settled = True
            guarded("report_outcome", self.provider.report_outcome, outcome)

    def _was_not_started(self, followed: FollowedRequest) -> None:
        """It was answered, and the forward never asked for its rows: a hook is not called, so nothing may be reused."""
        why = "SGLang computed a request without its rows"
        logger.error("%s: %s. SemBlend only looks from now on", followed.request_id, why)
        self.finder.stop(why)

    def _began(self, followed: FollowedRequest) -> None:
        guarded("what an earlier process left", self.finder.meet, followed)

    def _aborted(self, followed: FollowedRequest) -> None:
        self._settle(followed.request_id, DeclineReason.ABORTED)
        self._changed()

    def _changed(self) -> None:
        guarded("the metrics", self.on_change)
