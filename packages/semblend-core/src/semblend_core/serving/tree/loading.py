"""At admission: donors are found again and held, private slots taken, KV moved into them, and the donors let go."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from semblend_core.contract import DeclineReason, TokenIds
from semblend_core.kv import SlotTable
from semblend_core.kv.fetching import DonorFetch, RequestFetch
from semblend_core.serving.claims import Claim, Rows
from semblend_core.serving.cost_gate import CostGate
from semblend_core.serving.disk_waits import Arrival, DiskWaits
from semblend_core.serving.tree.donors import TreeDonors
from semblend_core.serving.tree.exact_tree import ExactTree, TreeLife, TreeMatch
from semblend_core.serving.tree.slot_pool import SlotPool

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Load:
    """One admitted request whose claim is filled, except for the rows that its first forward computes."""

    claim: Claim
    token_ids: TokenIds
    """The prompt."""
    slots: Tensor
    """Private slots of the whole claim, on the device."""
    done: Any
    """Event behind the copy; None where it is done already."""
    probed: Rows = ()
    """What a forward in front of the first computed inside the claim, to show where the question looks."""


@dataclass
class Sources:
    """Where the spans of a claim come from."""

    in_tree: dict[str, Tensor] = field(default_factory=dict)
    """Slots by donor."""
    fetches: list[DonorFetch] = field(default_factory=list)


class Loading:
    def __init__(self, tree: ExactTree, pool: SlotPool, donors: TreeDonors, costs: CostGate | None = None) -> None:
        """``costs``: says how long a request may wait for a disk."""
        self._tree, self._pool, self._donors = tree, pool, donors
        self._waits = DiskWaits(costs)

    def arrival(self, life: TreeLife, claim: Claim) -> Arrival:
        """Whether the donors of ``claim`` can be moved from now; what lies on disk is sent for."""
        if self._donors.kept is None or not self._donors.kept.has_disk:
            return "there"
        all_sent = self._send_for_missing(life, claim)
        if life.fetch.failed is not None:
            return life.fetch.failed
        tokens = sum(span.length for span in claim.spans)
        if not all_sent or not life.fetch.done:
            return self._waits.coming(life.request_id, tokens, its_turn=True)
        if life.fetch.donors:
            self._waits.came(life.request_id, tokens)
        else:
            self._waits.end(life.request_id)  # Only who waits for a disk can be late.
        return "there"

    def load(self, life: TreeLife, claim: Claim) -> Load | DeclineReason:
        """Fill private slots with what ``claim`` reuses. Donors are held while their KV is copied, and no longer."""
        with ExitStack() as held:
            sources = self._gather(life, claim, held)
            if sources is None:
                return DeclineReason.DONOR_EVICTED
            slots = self._tree.allocate(claim.length)
            if slots is None:
                return DeclineReason.ALLOCATION_FAILED
            try:
                self._move(claim, slots, sources)
            except Exception:
                logger.exception("relocated KV could not be loaded: the prompt is computed")
                self._tree.free(slots)
                return DeclineReason.LOAD_FAILED
            return Load(claim, life.token_ids, slots, self._pool.mark())

    def stop_fetching(self, life: TreeLife) -> None:
        """Nothing of what was sent for is wanted any more."""
        life.fetch = RequestFetch()
        self._waits.end(life.request_id)

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _send_for_missing(self, life: TreeLife, claim: Claim) -> bool:
        """Fetch what is on disk and nowhere else. Whether all of it could be sent for."""
        for donor_id in claim.donor_ids:
            spans, donor = claim.spans_of(donor_id), self._donors.promised(life, donor_id)
            if donor is None or donor_id in life.fetch.donors or not self._donors.only_on_disk(donor, spans):
                continue  # One that is gone is found out at admission.
            if not self._waits.may_fetch(life.request_id):
                return False
            fetch = self._donors.fetch(donor, spans)
            if fetch is not None:
                life.fetch.donors[donor_id] = fetch
        return True

    def _gather(self, life: TreeLife, claim: Claim, held: ExitStack) -> Sources | None:
        """Every donor of ``claim``, held in the tree or on its way; None where one is gone, which is then forgotten."""
        return self._sources(life, claim, self._hold_in_tree(life, claim, held))

    def _sources(self, life: TreeLife, claim: Claim, matches: Mapping[str, TreeMatch]) -> Sources | None:
        sources = Sources()
        for donor_id in claim.donor_ids:
            match = matches.get(donor_id)
            if match is not None:
                sources.in_tree[donor_id] = match.read_slots()
                continue
            fetch, donor = life.fetch.donors.get(donor_id), self._donors.promised(life, donor_id)
            if fetch is None and donor is not None:
                fetch = self._donors.fetch(donor, claim.spans_of(donor_id))
            if fetch is None:
                self._donors.book.drop((life.namespace.digest, donor_id))
                return None
            sources.fetches.append(fetch)
        return sources

    def _hold_in_tree(self, life: TreeLife, claim: Claim, held: ExitStack) -> dict[str, TreeMatch]:
        """Those donors of ``claim`` that the tree holds."""
        matches = {}
        for donor_id in claim.donor_ids:
            donor = self._donors.promised(life, donor_id)
            needed = max(span.donor_end for span in claim.spans_of(donor_id))
            match = None if donor is None else self._donors.find(donor, needed)
            if match is not None and match.length >= needed:
                held.enter_context(self._holding(match))
                matches[donor_id] = match
        return matches

    @contextmanager
    def _holding(self, match: TreeMatch) -> Iterator[None]:
        """What may write to the donor's slots afterwards is queued behind the copy."""
        held = self._tree.hold(match.node)
        try:
            yield
        finally:
            self._tree.let_go(held)

    def _move(self, claim: Claim, slots: Tensor, sources: Sources) -> None:
        """Nobody waits for the slots' numbers, except where KV comes from the donor store."""
        self._pool.come_behind_the_forward()
        spans = [span for span in claim.spans if span.donor_id in sources.in_tree]
        if spans:
            self._pool.move_slots(spans, sources.in_tree, slots.to(torch.int64), claim.start)
        parts = [part for fetch in sources.fetches for part in fetch.parts()]
        if parts:
            target = SlotTable.of_slots(slots.cpu().numpy(), first_position=claim.start)
            self._pool.bring([(donor, span) for donor, inside in parts for span in inside], target)
