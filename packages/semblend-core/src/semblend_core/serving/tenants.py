"""All that a scheduler's half holds of a tenant: shown, or dropped."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from semblend_core.contract import SemanticLookupProvider, TenantReport
from semblend_core.serving.life import RequestLife
from semblend_core.telemetry import AuditSink, TenantPurged

MOST_PURGES = 4096
"""That are remembered for the sake of requests which came before them and wait."""


class HoldsTenants(Protocol):
    """Something that remembers what requests brought, by namespace."""

    def forget_tenant(self, tenant: str) -> TenantReport:
        """Drop all of it: what there was."""

    def held_by(self, tenant: str) -> TenantReport:
        """What there is."""


class Tenants:
    """``begin_purge`` and ``held_by`` are called on the scheduler's thread, or while it waits."""

    def __init__(
        self,
        provider: SemanticLookupProvider,
        requests: Callable[[], Iterable[RequestLife]],
        holders: Sequence[HoldsTenants],
        audit: AuditSink | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``requests``: all under way that were met. ``now``: the clock by which the engine says when one came."""
        self._provider, self._requests, self._holders, self._audit = provider, requests, holders, audit
        self._now = now
        self._purged_at: OrderedDict[str, float] = OrderedDict()

    def meet(self, life: RequestLife, came_at: float) -> None:
        """A request is seen for the first time. It may have waited through a purge of its tenant."""
        if came_at <= self._purged_at.get(life.namespace.salt_digest, -1.0):
            life.purged = True

    def begin_purge(self, tenant: str) -> TenantReport:
        """From now on nothing that came before can be found, or is kept later: what there was. Quick."""
        self._purged_at[tenant] = self._now()
        self._purged_at.move_to_end(tenant)
        if len(self._purged_at) > MOST_PURGES:
            self._purged_at.popitem(last=False)
        for life in self._requests():
            if life.namespace.salt_digest == tenant:
                life.purged = True
        found = sum((holder.forget_tenant(tenant) for holder in self._holders), TenantReport())
        if self._audit is not None:
            self._audit.emit(TenantPurged.of(tenant, found))
        return found

    def finish_purge(self) -> None:
        """Overwrite in memory what is forgotten. Any thread; takes as long as putting it there did."""
        self._provider.sweep()

    def held_by(self, tenant: str) -> TenantReport:
        return sum((holder.held_by(tenant) for holder in self._holders), TenantReport())
