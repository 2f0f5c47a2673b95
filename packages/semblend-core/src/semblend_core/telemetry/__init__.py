"""Telemetry: the audit stream, the in-process counters, and (in ``telemetry.prometheus``) the metrics.

``semblend_core.telemetry.prometheus`` is imported by name, since it needs the extra ``metrics``.
"""

from semblend_core.telemetry.audit import AuditLog, AuditSink, NoAudit, open_audit
from semblend_core.telemetry.audit_counters import AuditCounters
from semblend_core.telemetry.counters import LatencyHistogram, LatencySnapshot, ProviderCounters
from semblend_core.telemetry.engine_metrics import (
    ENGINE_COUNTERS,
    ENGINE_GAUGES,
    ENGINE_LABELLED_COUNTERS,
    ENGINE_STATES,
)
from semblend_core.telemetry.events import (
    AUDIT_SCHEMA,
    EVENTS,
    AuditEvent,
    Declined,
    DonorCaptured,
    DonorRegistered,
    ErrorSeen,
    Evicted,
    LoadAdvertised,
    LookupDone,
    Materialized,
    PlanMade,
    Stage,
)
from semblend_core.telemetry.reader import AuditReading, TornLine, audit_files, iter_audit, read_audit

__all__ = [
    "AUDIT_SCHEMA",
    "ENGINE_COUNTERS",
    "ENGINE_GAUGES",
    "ENGINE_LABELLED_COUNTERS",
    "ENGINE_STATES",
    "EVENTS",
    "AuditCounters",
    "AuditEvent",
    "AuditLog",
    "AuditReading",
    "AuditSink",
    "Declined",
    "DonorCaptured",
    "DonorRegistered",
    "ErrorSeen",
    "Evicted",
    "LatencyHistogram",
    "LatencySnapshot",
    "LoadAdvertised",
    "LookupDone",
    "Materialized",
    "NoAudit",
    "PlanMade",
    "ProviderCounters",
    "Stage",
    "TornLine",
    "audit_files",
    "iter_audit",
    "open_audit",
    "read_audit",
]
