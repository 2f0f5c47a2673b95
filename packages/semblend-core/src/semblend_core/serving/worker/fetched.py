"""Loads that were begun before their step, while their request waited."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from semblend_core.contract import DeclineReason, Namespace, Span, TokenIds
from semblend_core.kv import DonorStore
from semblend_core.kv.fetching import RequestFetch, fetch_donor
from semblend_core.serving.messages import FetchOrder

IDLE_WAIT_S = 0.002
"""A request that comes meanwhile waits no longer."""
LONGEST_KEPT_S = 30.0
"""What was fetched for a request that never came is given up after this."""


@dataclass
class _Ahead:
    number: int
    fetch: RequestFetch
    since: float = field(default_factory=time.monotonic)
    told: bool = False
    held: bool = False
    """Promised to the engine: it stays until it is loaded or let go."""


class FetchedAhead:
    def __init__(self, store: DonorStore) -> None:
        self._store = store
        self._requests: dict[str, _Ahead] = {}

    def begin(self, namespace: Namespace, spans: Sequence[Span]) -> RequestFetch | None:
        """Start to bring the spans' donors. None where one of them is gone."""
        fetched = RequestFetch()
        for donor_id in dict.fromkeys(span.donor_id for span in spans):
            own = [span for span in spans if span.donor_id == donor_id]
            fetch = fetch_donor(self._store, namespace, donor_id, own)
            if fetch is None:
                return None
            fetched.donors[donor_id] = fetch
        return fetched

    def order(self, wanted: FetchOrder, namespace: Namespace) -> None:
        """``namespace``: as this rank stores it."""
        # One whose donor is gone has arrived as much as it ever will: the load will say so.
        fetch = self.begin(namespace, wanted.spans) or RequestFetch()
        self._requests[wanted.request_id] = _Ahead(wanted.number, fetch)

    def hold(
        self, request_id: str, namespace: Namespace, spans: Sequence[Span], token_ids: TokenIds
    ) -> DeclineReason | None:
        """Bring the spans' donors now and keep them for the request. Why not, where they are not at hand.

        Every donor must begin with ``token_ids``: what it holds is then exact for whoever begins so too.
        """
        fetch = self.begin(namespace, spans)
        if fetch is None:
            return DeclineReason.DONOR_EVICTED
        for donor in fetch.donors.values():
            known = donor.token_ids
            if known is None or not np.array_equal(known[: token_ids.size], token_ids):
                return DeclineReason.DONOR_CORRUPT
            reason = donor.arrive()
            if reason is not None:
                return reason
        self._requests[request_id] = _Ahead(-1, fetch, told=True, held=True)
        return None

    def keep_only(self, request_id: str, spans: Sequence[Span]) -> None:
        """Of what is held only these parts are loaded."""
        ahead = self._requests.get(request_id)
        if ahead is not None:
            for donor_id, fetch in ahead.fetch.donors.items():
                own = [span for span in spans if span.donor_id == donor_id]
                ahead.fetch.donors[donor_id] = replace(fetch, spans=own)

    def cancel(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def take(self, request_id: str) -> RequestFetch | None:
        ahead = self._requests.pop(request_id, None)
        return ahead.fetch if ahead is not None and ahead.fetch.donors else None

    def newly_done(self) -> list[int]:
        """Numbers of the orders that have arrived since the last question."""
        oldest = time.monotonic() - LONGEST_KEPT_S
        for request_id in [each for each, it in self._requests.items() if it.since < oldest and not it.held]:
            self.cancel(request_id)
        found = [ahead for ahead in self._requests.values() if not ahead.told and ahead.fetch.done]
        for ahead in found:
            ahead.told = True
        return [ahead.number for ahead in found]

    def wait_briefly(self) -> None:
        """Where the engine has nothing else to do. If it went on asking, those who read would hardly get to run."""
        on_their_way = (
            fetch.transfer
            for ahead in self._requests.values()
            if not ahead.told
            for fetch in ahead.fetch.donors.values()
            if not fetch.transfer.done()
        )
        first = next(on_their_way, None)
        if first is not None:
            first.wait_briefly(IDLE_WAIT_S)

    def close(self) -> None:
        self._requests.clear()
