"""What an operator asks of a running scheduler: what it holds of a tenant, and to drop it."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass

from semblend_core import TenantReport, tenant_of_salt
from semblend_core.control import NoTurnError, Turns
from semblend_core.serving import Tenants, contain
from semblend_core.serving.tree import KeptDonors
from semblend_sglang.scheduler.requests import SglangRequests

TURN_TIMEOUT_S = 30.0
"""What an operator's command waits for SGLang to come to the end of a round."""


@dataclass(frozen=True, slots=True)
class PurgeOrder:
    """Goes to all ranks with SGLang's own requests."""

    tenant: str
    number: str


class OperatorCommands:
    def __init__(
        self,
        tenants: Tenants,
        requests: SglangRequests,
        kept: KeptDonors | None,
        changed: Callable[[], None],
        catch_up: Callable[[], None],
        *,
        at_all_ranks: bool = False,
    ) -> None:
        """``changed``: is told of every purge. ``catch_up``: makes donors of what is about to become some.

        ``at_all_ranks``: there are several, and a purge begins at all.
        """
        self._tenants, self._requests, self._kept, self._changed = tenants, requests, kept, changed
        self._catch_up = catch_up
        self.turns = Turns()
        """What commands of other threads wait for."""
        self._at_all_ranks = at_all_ranks
        self._purges: dict[PurgeOrder, Future[TenantReport]] = {}
        self._unsent: deque[PurgeOrder] = deque()
        self.purge_storage: Callable[[], None] = lambda: None
        """Drops what SGLang keeps on disk by way of SemBlend."""

    def purge(self, salt: str | None) -> TenantReport:
        """Drop all that came with this salt, and wait until it is gone: what there was.

        Requests under way are served to their end and leave nothing but what SGLang's own cache takes of them.
        """
        tenant = tenant_of_salt(salt)
        return self.begin_purge(tenant) + self.finish_purge(tenant)

    def begin_purge(self, tenant: str) -> TenantReport:
        """From now on nothing that came before can be found. Quick, and on the scheduler's thread."""
        self._catch_up()
        found = self._tenants.begin_purge(tenant)
        for life in self._requests:
            if life.purged and life.is_queued:
                self._requests.withdraw(life)
                life.in_place, life.sought = None, None
        self._changed()
        return found

    def finish_purge(self, tenant: str) -> TenantReport:
        """Wait until it is gone from memory and disk. Any thread, and better not the scheduler's."""
        self._tenants.finish_purge()
        self.purge_storage()
        return TenantReport() if self._kept is None else self._kept.store.purge(tenant)

    def purge_between_rounds(self, tenant: str) -> TenantReport:
        """The same from another thread."""
        begin = self._begin_at_all_ranks if self._at_all_ranks else self._begin_here
        return begin(tenant) + self.finish_purge(tenant)

    def orders(self) -> list[PurgeOrder]:
        """At the first rank: what all ranks are to carry out in front of the next round."""
        return [self._unsent.popleft() for _ in range(len(self._unsent))]

    def carry_out(self, order: PurgeOrder) -> None:
        """At every rank, in front of the same round."""
        found = contain("a purge", self.begin_purge, order.tenant) or TenantReport()
        waiting = self._purges.pop(order, None)
        if waiting is not None:
            waiting.set_result(found)

    def _begin_here(self, tenant: str) -> TenantReport:
        return self.turns.call(lambda: self.begin_purge(tenant), TURN_TIMEOUT_S)

    def _begin_at_all_ranks(self, tenant: str) -> TenantReport:
        order = PurgeOrder(tenant, secrets.token_hex(8))
        waiting = self._purges[order] = Future()
        self._unsent.append(order)
        try:
            return waiting.result(TURN_TIMEOUT_S)
        except FutureTimeoutError:
            raise NoTurnError(f"the engine's ranks did not come to it within {TURN_TIMEOUT_S:g} s") from None

    def show_between_rounds(self, tenant: str) -> TenantReport:
        return self.turns.call(lambda: self._tenants.held_by(tenant), TURN_TIMEOUT_S)

    def held_by(self, salt: str | None) -> TenantReport:
        """What is held of all that came with this salt, SGLang's own cache left out."""
        return self._tenants.held_by(tenant_of_salt(salt))
