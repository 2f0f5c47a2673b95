"""Donors that may lie on disk: fetched while their request waits, so that the engine itself never waits for a disk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from semblend_core import Namespace, Span, joined_runs
from semblend_core.kv import DonorKv, DonorStore, StoredKv, Transfer
from semblend_vllm.messages import Fetch

LONGEST_WAIT_S = 2.0
"""What has not come by then is computed."""
MOST_AT_ONCE = 4
"""Requests whose donors are fetched at a time: what has come lies in the device's memory until it is loaded."""
LONGEST_KEPT_S = 30.0
"""What was fetched for a request that never came is given up after this."""


FetchState = Literal["coming", "there", "given up"]


class Waiting:
    """The scheduler's side: which requests wait for their donors."""

    def __init__(self, ranks: int) -> None:
        self._ranks = frozenset(range(ranks))
        self._orders: list[Fetch] = []
        self._unwanted: list[str] = []
        self._since: dict[str, float] = {}
        self._ordered: set[str] = set()
        self._there: dict[str, frozenset[int]] = {}

    def state(self, request_id: str, namespace: Namespace, spans: tuple[Span, ...]) -> FetchState:
        """Whether the donors can be loaded from now. The first question sends for them, if not too many are coming."""
        since = self._since.setdefault(request_id, time.monotonic())
        if request_id not in self._ordered and len(self._ordered) < MOST_AT_ONCE:
            self._ordered.add(request_id)
            self._orders.append(Fetch(request_id, namespace, spans))
        if self._there.get(request_id, frozenset()) >= self._ranks:
            return "there"
        return "given up" if time.monotonic() - since > LONGEST_WAIT_S else "coming"

    def arrived(self, news: dict[str, frozenset[int]]) -> None:
        for request_id in news.keys() & self._ordered:
            self._there[request_id] = self._there.get(request_id, frozenset()) | news[request_id]

    def done_with(self, request_id: str) -> None:
        """Its load is ordered, and takes what was fetched."""
        self._since.pop(request_id, None)
        self._there.pop(request_id, None)
        self._ordered.discard(request_id)

    def cancel(self, request_id: str) -> None:
        """What was sent for is not wanted any more."""
        if request_id in self._ordered:
            self._unwanted.append(request_id)
            self._orders = [order for order in self._orders if order.request_id != request_id]
        self.done_with(request_id)

    def take_orders(self) -> tuple[list[Fetch], list[str]]:
        """What to fetch, and for whom no more."""
        orders, self._orders = self._orders, []
        unwanted, self._unwanted = self._unwanted, []
        return orders, unwanted


@dataclass
class Part:
    """A donor of one request: what it is to give, and where that comes from."""

    handle: StoredKv
    ranges: list[tuple[int, int]]
    transfer: Transfer


@dataclass
class Parts:
    """All that one request is to be loaded from."""

    donors: dict[str, Part] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)
    told: bool = False

    def release(self) -> None:
        for part in self.donors.values():
            part.handle.release()

    @property
    def done(self) -> bool:
        return all(part.transfer.done() for part in self.donors.values())


class Fetched:
    """The worker's side: loads that were begun before their step."""

    def __init__(self, store: DonorStore) -> None:
        self._store = store
        self._requests: dict[str, Parts] = {}

    def begin(self, namespace: Namespace, spans: Sequence[Span]) -> Parts | None:
        """Start to bring the spans' donors. None where one of them is gone."""
        parts = Parts()
        try:
            for donor_id in dict.fromkeys(span.donor_id for span in spans):
                handle = self._store.acquire(namespace, donor_id)
                if handle is None:
                    parts.release()
                    return None
                ranges = _ranges([span for span in spans if span.donor_id == donor_id], str(handle.tier) == "device")
                parts.donors[donor_id] = Part(handle, ranges, self._store.load(handle, ranges))
        except BaseException:
            parts.release()
            raise
        return parts

    def order(self, request_id: str, namespace: Namespace, spans: Sequence[Span]) -> None:
        self.cancel(request_id)
        # One that is gone has arrived as much as it ever will: the load will say so.
        self._requests[request_id] = self.begin(namespace, spans) or Parts()

    def cancel(self, request_id: str) -> None:
        parts = self._requests.pop(request_id, None)
        if parts is not None:
            parts.release()

    def take(self, request_id: str) -> Parts | None:
        parts = self._requests.pop(request_id, None)
        return parts if parts is not None and parts.donors else None

    def newly_done(self) -> list[str]:
        self._give_up_old()
        found = [request_id for request_id, parts in self._requests.items() if not parts.told and parts.done]
        for request_id in found:
            self._requests[request_id].told = True
        return found

    def close(self) -> None:
        while self._requests:
            self._requests.popitem()[1].release()

    def _give_up_old(self) -> None:
        oldest = time.monotonic() - LONGEST_KEPT_S
        for request_id in [each for each, parts in self._requests.items() if parts.since < oldest]:
            self.cancel(request_id)


def _ranges(spans: list[Span], at_hand: bool) -> list[tuple[int, int]]:
    """Which of a donor's tokens to bring. Of one at hand a view costs nothing, so one serves all spans."""
    wanted = joined_runs((span.donor_start, span.donor_end) for span in spans)
    return [(wanted[0][0], wanted[-1][1])] if at_hand else wanted


def part_with(span: Span, ranges: Sequence[tuple[int, int]], parts: Sequence[DonorKv]) -> DonorKv:
    """The part that holds ``span``."""
    return next(
        part
        for (start, end), part in zip(ranges, parts, strict=True)
        if start <= span.donor_start and span.donor_end <= end
    )
