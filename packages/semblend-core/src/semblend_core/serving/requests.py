"""The requests under way, and the one place where an outcome is reported."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Generic, TypeVar

from semblend_core.contract import DeclineReason, Outcome, OutcomeKind
from semblend_core.serving.claims import Claim
from semblend_core.serving.containment import contain
from semblend_core.serving.life import RequestLife, Stage

logger = logging.getLogger(__name__)

Life = TypeVar("Life", bound=RequestLife)


class RequestBook(Generic[Life]):
    """By the engine's id for them. Called on the scheduler's thread only.

    ``report`` is the provider's. ``give_back`` is told of a request whose claim does not stand any longer, to undo what
    the adapter did for it.
    """

    def __init__(
        self, report: Callable[[Outcome], None], give_back: Callable[[Life], None] = lambda life: None
    ) -> None:
        self._report_outcome, self._give_back = report, give_back
        self._lives: dict[str, Life] = {}
        self._leaving: dict[str, Life] = {}
        """Those whose load is under way although the engine has done with them."""
        self._refused: set[str] = set()
        """Requests that cannot be followed, and were counted."""

    def __len__(self) -> int:
        return len(self._lives) + len(self._leaving)

    def __iter__(self) -> Iterator[Life]:
        return iter(self._lives.values())

    def get(self, request_id: str) -> Life | None:
        """What the engine knows by this id now. Another may have gone by it, whose load is still under way."""
        return self._lives.get(request_id)

    def get_loading(self, request_id: str) -> Life | None:
        """Whose load a worker tells of. Of two with one id, the one that has left was told to load first."""
        return self._leaving.get(request_id) or self._lives.get(request_id)

    def of(self, request: Any, request_id: str) -> Life | None:
        """What is known of this very request. Ids come from clients: another may go by the same one."""
        life = self._lives.get(request_id)
        return life if life is not None and life.request is request else None

    def add(self, life: Life) -> None:
        self._lives[life.request_id] = life

    def refuse(self, request_id: str, reason: DeclineReason) -> None:
        """It is not of a kind that can be followed. Counted once, however often the engine asks."""
        if request_id not in self._refused:
            self._refused.add(request_id)
            self._report(Outcome(request_id, OutcomeKind.DECLINED, reason=reason))

    # --- The way of reuse ------------------------------------------------------------------------------------------

    def claim(self, life: Life, claim: Claim) -> None:
        life.go(Stage.CLAIMED)
        life.claim = claim

    def withdraw(self, life: Life) -> None:
        """The claim does not stand any longer: the request may be looked up again."""
        life.question = None
        if life.stage is Stage.CLAIMED:
            life.go(Stage.WAITING)
            self._drop_claim(life)

    def shorten(self, life: Life, claim: Claim) -> None:
        """The engine has room for a part of the claim only."""
        assert life.stage is Stage.CLAIMED
        life.claim = claim

    def load(self, life: Life) -> Claim:
        """The engine took the claim: what it promises is on its way."""
        assert life.claim is not None
        life.go(Stage.LOADING)
        return life.claim

    def take_back(self, life: Life) -> None:
        """The engine did not take the request after all. Its claim stands."""
        life.go(Stage.CLAIMED)

    def confirm(self, life: Life, tokens: int, moved_bytes: int) -> None:
        """The bytes have landed."""
        if life.stage not in (Stage.LOADING, Stage.LEAVING):
            return
        self._settle(life, Stage.REUSING, _materialized(life, tokens, moved_bytes))

    def take_in_place(self, life: Life, tokens: int) -> None:
        """Nothing was claimed, and the engine took ``tokens`` of a lineage where they lie."""
        if life.stage is Stage.WAITING:
            self._settle(life, Stage.REUSING, _materialized(life, tokens, 0))

    def take_alias(self, life: Life, tokens: int) -> None:
        """Nothing was claimed, and the engine took KV of *other* tokens for ``tokens`` of the request's."""
        if life.stage is Stage.WAITING:
            self._settle(life, Stage.REUSING, Outcome(life.request_id, OutcomeKind.ALIAS, alias_tokens=tokens))

    # --- The ways without --------------------------------------------------------------------------------------------

    def decline(self, life: Life, reason: DeclineReason) -> None:
        """The request is served without reuse after all. One that was never looked up has nothing to report."""
        if life.stage in (Stage.DECLINED, Stage.REUSING, Stage.COLD, Stage.ENDED):
            return
        was_claimed = life.stage is Stage.CLAIMED
        self._settle(life, Stage.DECLINED, self._declined(life, reason))
        if was_claimed:
            self._drop_claim(life)

    def serve_without(self, life: Life, stage: Stage, unproved: DeclineReason | None) -> None:
        """Nothing was claimed: say why, by what the last lookup said.

        ``stage``: DECLINED in the queue, COLD once computed. ``unproved``: why nothing that was found may be loaded.
        """
        if life.stage is not Stage.WAITING:
            return
        finding = life.finding
        if finding is None or not finding.found:
            said = finding.reason if finding is not None else None
            outcome = self._declined(life, life.lost or said or DeclineReason.NO_SPANS)
        else:
            # Where nobody wanted it loaded, nothing is refused. After a failure the provider lets nothing be loaded.
            wanted = life.wish.mode == "on" and (finding.loadable or unproved is DeclineReason.SELF_TEST_FAILED)
            outcome = Outcome(life.request_id, OutcomeKind.DISCOVERY_ONLY, reason=unproved if wanted else None)
        self._settle(life, stage, outcome)

    def compute(self, life: Life) -> None:
        """The engine took a declined request."""
        if life.stage is Stage.DECLINED:
            life.go(Stage.COLD)

    def start_over(self, life: Life) -> None:
        """Its memory was given back, with all that was loaded or computed in it: it is an ordinary request now."""
        if life.stage is Stage.REUSING:
            life.go(Stage.DECLINED)
        assert life.stage is Stage.DECLINED, life.stage
        life.captured = False
        if life.finding is not None:
            life.finding = replace(life.finding, covered_tokens=0)  # What did not come is held by nobody.
        self._drop_claim(life)

    # --- The end -----------------------------------------------------------------------------------------------------

    def end(self, life: Life, *, loading: bool = True) -> None:
        """The engine has done with it, in whatever stage. ``loading``: a load under way will still be confirmed."""
        if life.stage in (Stage.LEAVING, Stage.ENDED):
            return
        if self._lives.get(life.request_id) is life:
            del self._lives[life.request_id]
        if life.stage is Stage.LOADING and loading:
            life.go(Stage.LEAVING)
            self._leaving[life.request_id] = life
            return
        if life.stage in (Stage.WAITING, Stage.CLAIMED, Stage.LOADING):
            self.decline(life, DeclineReason.ABORTED)
        life.go(Stage.ENDED)

    def end_refused(self, request_id: str) -> None:
        self._refused.discard(request_id)

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _drop_claim(self, life: Life) -> None:
        life.claim = None
        contain("giving a claim back", self._give_back, life)

    @staticmethod
    def _declined(life: Life, reason: DeclineReason) -> Outcome | None:
        if life.finding is None:
            return None
        if reason is DeclineReason.EXACT_PREFIX_COVERS:
            return Outcome(life.request_id, OutcomeKind.EXACT_PREFIX)
        return Outcome(life.request_id, OutcomeKind.DECLINED, reason=reason)

    def _settle(self, life: Life, stage: Stage, outcome: Outcome | None) -> None:
        """Outcomes are reported here and nowhere else, so each is reported once."""
        if life.stage is Stage.LEAVING:
            stage = Stage.ENDED
            if self._leaving.get(life.request_id) is life:
                del self._leaving[life.request_id]
        life.go(stage)
        if outcome is not None and life.counted:
            self._report(outcome)

    def _report(self, outcome: Outcome) -> None:
        contain("reporting an outcome", self._report_outcome, outcome)
        logger.debug("%s: %s %s", outcome.request_id, outcome.kind, outcome.reason or outcome.confirmed_tokens)


def _materialized(life: RequestLife, tokens: int, moved_bytes: int) -> Outcome:
    return Outcome(
        life.request_id, OutcomeKind.MATERIALIZED, confirmed_tokens=tokens, confirmed_bytes=moved_bytes or None
    )
