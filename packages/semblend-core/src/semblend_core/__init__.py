"""Semantic KV reuse for LLM engines: the contract, the provider behind it, settings and telemetry.

The names here are the public surface for adapters; everything else is an inside that may change at any time.
"""

from semblend_core.__about__ import __version__
from semblend_core.contract import (
    MAX_TOKEN_ID,
    DeclineReason,
    DonorOffer,
    Evidence,
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
    gap_rows,
)
from semblend_core.extras import MissingExtraError, require_extra
from semblend_core.planning import CostModel, LayerProfile, LayerProfileError
from semblend_core.provider import SemBlend, create_provider
from semblend_core.settings import SettingError, Settings
from semblend_core.telemetry import (
    AuditLog,
    AuditSink,
    DonorCaptured,
    ErrorSeen,
    LoadAdvertised,
    open_audit,
    read_audit,
)

__all__ = [
    "MAX_TOKEN_ID",
    "AuditLog",
    "AuditSink",
    "CostModel",
    "DeclineReason",
    "DonorCaptured",
    "DonorOffer",
    "ErrorSeen",
    "Evidence",
    "InvalidPlanError",
    "InvalidTokenIdsError",
    "LayerProfile",
    "LayerProfileError",
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
    "gap_rows",
    "open_audit",
    "read_audit",
    "require_extra",
]
