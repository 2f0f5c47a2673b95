"""All that a scheduler's half holds of a tenant: shown, or dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from semblend_core.contract import SemanticLookupProvider, TenantReport
from semblend_core.serving.life import RequestLife
from semblend_core.telemetry import AuditSink, TenantPurged


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
    ) -> None:
        """``requests``: all that are under way."""
        self._provider, self._requests, self._holders, self._audit = provider, requests, holders, audit

    def begin_purge(self, tenant: str) -> TenantReport:
        """From now on nothing that came before can be found, or is kept later: what there was. Quick."""
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
