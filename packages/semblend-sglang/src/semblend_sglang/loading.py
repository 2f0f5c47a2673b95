"""At admission: donors are found again and held, private slots taken, KV moved into them, and the donors let go."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semblend_core import DeclineReason, TokenIds
from semblend_core.kv import Moves, SlotTable
from semblend_sglang.claims import Claim
from semblend_sglang.donors import Donor
from semblend_sglang.fetching import Fetch
from semblend_sglang.pool import KvPool
from semblend_sglang.tree import ExactTree

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


@dataclass
class Sources:
    """Where the spans of a claim come from."""

    tree: ExactTree
    in_tree: dict[str, Tensor] = field(default_factory=dict)
    """Slots by donor."""
    fetches: list[Fetch] = field(default_factory=list)
    held: list[Any] = field(default_factory=list)

    def hold_in_tree(self, donor: Donor, tokens: int) -> bool:
        """Whether the tree holds the donor's first ``tokens`` now; if so they stay until let go."""
        reach = -(-tokens // self.tree.page_size) * self.tree.page_size
        match = self.tree.find(donor.tokens[:reach], donor.key)
        if match.length < tokens:
            return False
        self.held.append(self.tree.hold(match.node))
        self.in_tree[donor.donor_id] = match.read_slots()
        return True

    def let_go(self) -> None:
        """What may write to the donors' slots from now on is queued behind the copy."""
        while self.held:
            self.tree.let_go(self.held.pop())


def load(claim: Claim, token_ids: TokenIds, sources: Sources, pool: KvPool) -> Load | DeclineReason:
    """Fill private slots with the spans of ``claim``. The host waits for the slots' numbers only."""
    slots = sources.tree.allocate(claim.length)
    if slots is None:
        return DeclineReason.ALLOCATION_FAILED
    try:
        done = _move(claim, slots, sources, pool)
    except Exception:
        logger.exception("relocated KV could not be loaded: the prompt is computed")
        sources.tree.free(slots)
        return DeclineReason.LOAD_FAILED
    return Load(claim, token_ids, slots, done)


def _move(claim: Claim, slots: Tensor, sources: Sources, pool: KvPool) -> Any:
    tables = list(sources.in_tree.values())
    numbers = torch.cat([slots.to(torch.int64), *tables]).cpu().numpy()
    target = SlotTable.of_slots(numbers[: claim.length], first_position=claim.start)
    ends = np.cumsum([claim.length, *(len(table) for table in tables)])
    places = {
        donor_id: SlotTable.of_slots(numbers[start:end])
        for donor_id, start, end in zip(sources.in_tree, ends[:-1], ends[1:], strict=True)
    }
    spans = [span for span in claim.spans if span.donor_id in places]
    pool.come_behind_the_forward()
    if spans:
        pool.move(Moves.build(spans, sources=places, target=target))
    for fetch in sources.fetches:
        for donor, inside in fetch.parts():
            pool.bring(donor, inside, target)
    return pool.mark()
