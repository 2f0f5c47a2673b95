"""What became of the requests that a prefix provider was asked about: it has no counters of its own."""

from __future__ import annotations

from semblend_core.contract import Outcome, OutcomeKind, ProviderStats
from semblend_core.telemetry import Aliased, AuditSink, Declined, NoAudit, ProviderCounters


class AliasLedger:
    """Counts and records. KV of other tokens is an ``alias`` and never ``materialized``."""

    def __init__(self, audit: AuditSink | None = None) -> None:
        self._audit = audit or NoAudit()
        self._counters = ProviderCounters()

    def report_outcome(self, outcome: Outcome) -> None:
        self._counters.count_outcome(outcome)
        if outcome.kind is OutcomeKind.ALIAS:
            self._audit.emit(Aliased.of(outcome))
        elif outcome.kind is OutcomeKind.DECLINED and outcome.reason is not None:
            self._audit.emit(Declined(request_id=outcome.request_id, reason=outcome.reason, stage="lookup"))

    def stats(self) -> ProviderStats:
        return self._counters.snapshot(donors=0, donor_bytes=0, pinned_requests=0)

    def close(self) -> None:
        self._audit.close()
