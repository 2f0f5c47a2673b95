"""Telemetry: the audit stream, the in-process counters, and the names under which engines export them."""

from semblend_core.telemetry.audit import AuditLog, AuditSink, NoAudit, open_audit
from semblend_core.telemetry.counters import (
    ENGINE_COUNTERS,
    ENGINE_GAUGES,
    ENGINE_LABELLED_COUNTERS,
    ENGINE_STATES,
    ProviderCounters,
    growth_of,
)
from semblend_core.telemetry.events import (
    Aliased,
    CostsCompared,
    Declined,
    DonorCaptured,
    DonorRegistered,
    ErrorSeen,
    Evicted,
    LoadAdvertised,
    LookupDone,
    Materialized,
    PlanMade,
    QualityCompared,
    Regretted,
    Stage,
    TenantPurged,
)
from semblend_core.telemetry.quality_metrics import QualityMetrics, QualityNews
from semblend_core.telemetry.reader import iter_audit, read_audit

__all__ = [
    "ENGINE_COUNTERS",
    "ENGINE_GAUGES",
    "ENGINE_LABELLED_COUNTERS",
    "ENGINE_STATES",
    "Aliased",
    "AuditLog",
    "AuditSink",
    "CostsCompared",
    "Declined",
    "DonorCaptured",
    "DonorRegistered",
    "ErrorSeen",
    "Evicted",
    "LoadAdvertised",
    "LookupDone",
    "Materialized",
    "NoAudit",
    "PlanMade",
    "ProviderCounters",
    "QualityCompared",
    "QualityMetrics",
    "QualityNews",
    "Regretted",
    "Stage",
    "TenantPurged",
    "growth_of",
    "iter_audit",
    "open_audit",
    "read_audit",
]
