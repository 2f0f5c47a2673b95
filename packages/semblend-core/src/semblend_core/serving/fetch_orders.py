"""Donors that may lie on disk or on a server: workers are asked to fetch them while their request waits."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from semblend_core.serving.cost_gate import CostGate
from semblend_core.serving.disk_waits import Arrival, DiskWaits
from semblend_core.serving.life import RequestLife
from semblend_core.serving.messages import FetchOrder, StepWork


@dataclass
class _Sent:
    number: int
    ranks: frozenset[int] = frozenset()
    """At which its donors are by now."""


class FetchOrders:
    def __init__(self, ranks: int, costs: CostGate | None = None) -> None:
        """``costs``: says how long a request may wait."""
        self._ranks = frozenset(range(ranks))
        self._waits = DiskWaits(costs)
        self._numbers = itertools.count()
        self._new: list[FetchOrder] = []
        self._unwanted: list[str] = []
        self._sent: dict[str, _Sent] = {}
        """By request whose donors were sent for."""

    def arrival(self, life: RequestLife, *, its_turn: bool = True) -> Arrival:
        """Whether the donors of its claim can be loaded from now. The first question sends for them.

        ``its_turn``: the engine would compute it now.
        """
        assert life.claim is not None
        request_id = life.request_id
        if self._waits.may_fetch(request_id) and request_id not in self._sent:
            self._sent[request_id] = _Sent(next(self._numbers))
            number = self._sent[request_id].number
            self._new.append(FetchOrder(number, request_id, life.namespace, life.claim.spans))
        sent = self._sent.get(request_id)
        tokens = sum(span.length for span in life.claim.spans)
        if sent is None or not sent.ranks >= self._ranks:
            return self._waits.coming(request_id, tokens, its_turn=its_turn)
        if its_turn:
            self._waits.came(request_id, tokens)
        return "there"

    def arrived(self, news: dict[int, frozenset[int]]) -> None:
        for sent in self._sent.values():
            sent.ranks |= news.get(sent.number, frozenset())

    def end(self, request_id: str, *, wanted: bool) -> None:
        """Nobody waits any longer. ``wanted``: its load is ordered, and takes what was fetched."""
        self._waits.end(request_id)
        if self._sent.pop(request_id, None) is not None and not wanted:
            self._unwanted.append(request_id)
            self._new = [order for order in self._new if order.request_id != request_id]

    def put_into(self, work: StepWork) -> None:
        """What to fetch, and for whom no more."""
        work.fetches, self._new = self._new, []
        work.unwanted, self._unwanted = self._unwanted, []
