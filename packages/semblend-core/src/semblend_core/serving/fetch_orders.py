"""Donors that may lie on disk: workers are asked to fetch them while their request waits."""

from __future__ import annotations

from semblend_core.serving.disk_waits import Arrival, DiskWaits
from semblend_core.serving.life import RequestLife
from semblend_core.serving.messages import FetchOrder, StepWork


class FetchOrders:
    def __init__(self, ranks: int) -> None:
        self._ranks = frozenset(range(ranks))
        self._waits = DiskWaits()
        self._new: list[FetchOrder] = []
        self._unwanted: list[str] = []
        self._arrived: dict[str, frozenset[int]] = {}
        """By request whose donors were sent for: the ranks at which they are."""

    def arrival(self, life: RequestLife) -> Arrival:
        """Whether the donors of its claim can be loaded from now. The first question sends for them."""
        assert life.claim is not None
        request_id = life.request_id
        if self._waits.may_fetch(request_id) and request_id not in self._arrived:
            self._arrived[request_id] = frozenset()
            self._new.append(FetchOrder(request_id, life.namespace, life.claim.spans))
        if self._arrived.get(request_id, frozenset()) >= self._ranks:
            return "there"
        return self._waits.coming(request_id)

    def arrived(self, news: dict[str, frozenset[int]]) -> None:
        for request_id in news.keys() & self._arrived.keys():
            self._arrived[request_id] |= news[request_id]

    def end(self, request_id: str, *, wanted: bool) -> None:
        """Nobody waits any longer. ``wanted``: its load is ordered, and takes what was fetched."""
        self._waits.end(request_id)
        if self._arrived.pop(request_id, None) is not None and not wanted:
            self._unwanted.append(request_id)
            self._new = [order for order in self._new if order.request_id != request_id]

    def put_into(self, work: StepWork) -> None:
        """What to fetch, and for whom no more."""
        work.fetches, self._new = self._new, []
        work.unwanted, self._unwanted = self._unwanted, []
