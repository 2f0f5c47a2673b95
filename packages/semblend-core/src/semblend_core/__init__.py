"""Semantic KV reuse for LLM engines: the contract, the provider behind it, settings and telemetry.

The names here are the public surface for adapters; everything else is an inside that may change at any time.
"""

from semblend_core.__about__ import __version__
from semblend_core.contract import (
    DeclineReason,
    DonorOffer,
    InvalidPlanError,
    InvalidTokenIdsError,
    LookupRequest,
    LookupResult,
    Namespace,
    OfferResult,
    Outcome,
    OutcomeKind,
    Plan,
    ProviderStats,
    Row,
    RowKind,
    SemanticLookupProvider,
    SemanticPrefixProvider,
    SemanticPrefixResult,
    Span,
    TokenIds,
    as_token_ids,
    donor_id_of,
    identity_of_weights,
)
from semblend_core.extras import MissingExtraError, require_extra
from semblend_core.planning import CostModel
from semblend_core.provider import SemBlend, create_provider
from semblend_core.settings import SettingError, Settings
from semblend_core.telemetry import (
    ENGINE_COUNTERS,
    ENGINE_GAUGES,
    ENGINE_LABELLED_COUNTERS,
    AuditSink,
    LoadAdvertised,
    growth_of,
    open_audit,
    read_audit,
)

__all__ = [
    "ENGINE_COUNTERS",
    "ENGINE_GAUGES",
    "ENGINE_LABELLED_COUNTERS",
    "AuditSink",
    "CostModel",
    "DeclineReason",
    "DonorOffer",
    "InvalidPlanError",
    "InvalidTokenIdsError",
    "LoadAdvertised",
    "LookupRequest",
    "LookupResult",
    "MissingExtraError",
    "Namespace",
    "OfferResult",
    "Outcome",
    "OutcomeKind",
    "Plan",
    "ProviderStats",
    "Row",
    "RowKind",
    "SemBlend",
    "SemanticLookupProvider",
    "SemanticPrefixProvider",
    "SemanticPrefixResult",
    "SettingError",
    "Settings",
    "Span",
    "TokenIds",
    "__version__",
    "as_token_ids",
    "create_provider",
    "donor_id_of",
    "growth_of",
    "identity_of_weights",
    "open_audit",
    "read_audit",
    "require_extra",
]
