"""Which served prompts become donors, and which donors are dropped. On a thread of its own: no request waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Semaphore
from typing import Any

from semblend_core import donor_id_of
from semblend_dynamo.dynamo.deciding import Verdict
from semblend_dynamo.dynamo.events import DonorEvent
from semblend_dynamo.dynamo.residency import WorkerRank
from semblend_dynamo.dynamo.shared_donors import SharedDonors
from semblend_dynamo.placement import Account, DonorBook, DonorKey

logger = logging.getLogger(__name__)

WAITING = 1024
"""Changes that may wait for the thread; further ones are dropped and counted."""
YOUNG_S = 30.0
"""A donor of this age may be missing from Dynamo's index because its KV event is still on its way."""


class DonorKeeper:
    def __init__(self, book: DonorBook, donors: SharedDonors, account: Account, *, new_tokens: int) -> None:
        """``new_tokens``: fewest tokens by which a prompt must exceed what its worker had already."""
        self._book = book
        self._donors = donors
        self._account = account
        self._new_tokens = new_tokens
        self._room = Semaphore(WAITING)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="semblend-donors")

    def served(self, verdict: Verdict, worker: WorkerRank) -> None:
        """A worker answered: the prompt's KV is there."""
        self._later(lambda: self._served(verdict, worker))

    async def told(self, events: Sequence[DonorEvent]) -> None:
        """Another replica's events. Returns when they are applied."""
        for event in events:
            await asyncio.wrap_future(self._thread.submit(self._donors.apply, event))

    def do(self, work: Callable[[], int]) -> Future[int]:
        """An operator's order, after all that came before it."""
        return self._thread.submit(work)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _later(self, work: Callable[[], object]) -> None:
        if not self._room.acquire(blocking=False):
            self._account.count("donor_changes_dropped")
            return

        def run() -> None:
            try:
                work()
            except Exception as error:
                # The message may quote tokens: the log gets the class only.
                logger.error("a change to the donors failed (%s); requests are not affected", type(error).__name__)
                self._account.count("donor_changes_failed")
            finally:
                self._room.release()

        self._thread.submit(run)

    def _served(self, verdict: Verdict, worker: WorkerRank) -> None:
        request, finding = verdict.request, verdict.finding
        self._drop_lost(verdict)
        size = int(request.token_ids.size)
        if size - verdict.on(worker) < self._new_tokens:
            self._account.count("donor_covered")
            return
        donor_id = donor_id_of(request.token_ids)
        if self._donors.register(request.namespace, donor_id, request.token_ids, worker, finding):
            self._account.count("donor_registered")
            self._drop_replaced(verdict, worker, donor_id)

    def _drop_replaced(self, verdict: Verdict, worker: WorkerRank, by: str) -> None:
        """The earlier turns of a conversation: the new prompt begins with all of them, on the same worker."""
        for piece in verdict.finding.pieces:
            if piece.target_start or piece.donor_start or piece.donor_id == by:
                continue
            tokens = self._book.tokens(verdict.request.namespace, piece.donor_id)
            there = verdict.held.get(piece.donor_id, {}).get(worker, 0)
            if tokens is not None and piece.length == tokens.size and there > piece.length - self._new_tokens:
                self._donors.evict(DonorKey(verdict.request.namespace.digest, piece.donor_id))
                self._account.count("donor_replaced")

    def _drop_lost(self, verdict: Verdict) -> None:
        """Donors that no worker holds any more."""
        for donor_id, workers in verdict.held.items():
            key = DonorKey(verdict.request.namespace.digest, donor_id)
            age = self._donors.age_s(key)
            if not workers and age is not None and age > YOUNG_S:
                self._donors.evict(key)
                self._account.count("donor_lost")

    def report(self) -> dict[str, Any]:
        return {"donors": len(self._donors), "generation": self._donors.generation}
