"""Loads where there are several ranks: each moves its heads, and what fails at one fails at all."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any, Literal, TypeAlias

from semblend_core import DeclineReason
from semblend_core.serving import Arrival, Claim, CostGate, contain
from semblend_core.serving.tree import ExactTree, Load, Loading, SlotPool, TreeDonors, TreeMatch
from semblend_sglang.scheduler.ranked_donors import RankedDonors
from semblend_sglang.scheduler.ranks import Ranks

logger = logging.getLogger(__name__)

_Progress: TypeAlias = Literal["done", "coming"] | DeclineReason


class RankedLoading(Loading):
    """Whatever changes a tree is done by every rank, in the same order, and before anything that can fail at one."""

    def __init__(
        self, ranks: Ranks, tree: ExactTree, pool: SlotPool, donors: TreeDonors, costs: CostGate | None = None
    ) -> None:
        super().__init__(tree, pool, donors, costs)
        self._ranks = ranks

    def arrival(self, life: Any, claim: Claim) -> Arrival:
        if self._donors.kept is None or not self._donors.kept.has_disk:
            return "there"
        all_sent = self._send_for_what_no_tree_holds(life, claim)
        if all_sent and not life.sent:
            return "there"
        tokens = sum(span.length for span in claim.spans)
        # Only the first rank's clock counts.
        waits = self._waits.coming(life.request_id, tokens, its_turn=True) if self._ranks.is_first else None
        told = self._ranks.exchange((self._progress(life), waits))
        failed = next((said for said, _ in told if isinstance(said, DeclineReason)), None)
        if failed is not None:
            return failed
        if all_sent and all(said == "done" for said, _ in told):
            self._waits.came(life.request_id, tokens)
            return "there"
        return told[0][1] or "coming"

    def load(self, life: Any, claim: Claim) -> Load | DeclineReason:
        in_tree: set[str] = set()
        mine = self._load(life, claim, in_tree)
        told = self._ranks.exchange(mine if isinstance(mine, DeclineReason) else None)
        reason = next((said for said in told if said is not None), None)
        if reason is None:
            return mine
        if isinstance(mine, Load):
            self._tree.free(mine.slots)
        if reason is DeclineReason.DONOR_EVICTED:
            for donor_id in set(claim.donor_ids) - in_tree:  # Some rank has lost its part of one of them.
                self._donors.book.drop((life.namespace.digest, donor_id))
        return reason

    def stop_fetching(self, life: Any) -> None:
        super().stop_fetching(life)
        life.sent = set()

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _load(self, life: Any, claim: Claim, in_tree: set[str]) -> Load | DeclineReason:
        """What became of it at this rank. Never raises. ``in_tree`` is filled with the donors that the trees hold."""
        slots = None
        try:
            with ExitStack() as held:
                matches = self._hold_in_tree(life, claim, held)
                in_tree |= set(matches)
                slots = self._tree.allocate(claim.length)
                if slots is None:
                    return DeclineReason.ALLOCATION_FAILED
                reason = self._fill(life, claim, matches, slots)
                if reason is None:
                    return Load(claim, life.token_ids, slots, self._pool.mark())
        except Exception:
            logger.exception("relocated KV could not be loaded at rank %d: the prompt is computed", self._ranks.rank)
            reason = DeclineReason.LOAD_FAILED
        if slots is not None:
            self._tree.free(slots)
        return reason

    def _fill(self, life: Any, claim: Claim, matches: dict[str, TreeMatch], slots: Any) -> DeclineReason | None:
        sources = self._sources(life, claim, matches)
        if sources is None:
            return DeclineReason.DONOR_EVICTED
        self._move(claim, slots, sources)
        return None

    def _send_for_what_no_tree_holds(self, life: Any, claim: Claim) -> bool:
        """Whether all of it could be sent for. In which tier a donor lies, each rank's store has decided by itself."""
        for donor_id in claim.donor_ids:
            donor, spans = self._donors.promised(life, donor_id), claim.spans_of(donor_id)
            if donor is None or donor_id in life.sent:
                continue
            needed = max(span.donor_end for span in spans)
            if self._donors.find(donor, needed).length >= needed:
                continue
            if not self._waits.may_fetch(life.request_id):
                return False
            life.sent.add(donor_id)
            fetch = contain("fetching a donor", self._donors.fetch, donor, spans)
            if fetch is not None:  # One that is gone is found out at admission.
                life.fetch.donors[donor_id] = fetch
        return True

    def _progress(self, life: Any) -> _Progress:
        try:
            return life.fetch.failed or ("done" if life.fetch.done else "coming")
        except Exception:
            logger.exception("donors are not fetched at rank %d", self._ranks.rank)
            return DeclineReason.LOAD_FAILED


def loading_of(
    ranks: Ranks | None, tree: ExactTree, pool: SlotPool, donors: TreeDonors, costs: CostGate | None
) -> Loading:
    if ranks is None:
        return Loading(tree, pool, donors, costs)
    assert isinstance(donors, RankedDonors)
    return RankedLoading(ranks, tree, pool, donors, costs)
