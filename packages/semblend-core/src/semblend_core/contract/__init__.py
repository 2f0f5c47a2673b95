"""The contract between engines and SemBlend: two narrow ABCs and their frozen value types.

Read in this order: ``plan`` (what is reused and computed), ``lookup`` (what an engine calls), ``namespace``
(who may share), ``outcome`` (what is counted), ``prefix`` (the one-prefix contract for radix caches).
"""

from semblend_core.contract.lookup import (
    DonorOffer,
    EvictionCause,
    Glimpse,
    LookupRequest,
    LookupResult,
    OfferResult,
    ProviderStats,
    SemanticLookupProvider,
)
from semblend_core.contract.namespace import Namespace, digest_at_rank, tenant_of, tenant_of_salt
from semblend_core.contract.outcome import DeclineReason, Outcome, OutcomeKind, ProbeEnd, short_id
from semblend_core.contract.plan import InvalidPlanError, Plan, Row, RowKind, Span, joined_runs
from semblend_core.contract.prefix import SemanticPrefixProvider, SemanticPrefixResult
from semblend_core.contract.self_test import SelfTestResult, SelfTestState
from semblend_core.contract.tenants import TenantReport
from semblend_core.contract.tokens import InvalidTokenIdsError, TokenIds, as_token_ids, donor_id_of
from semblend_core.contract.weights import LOADED_FROM_FILES, identity_of_weights

__all__ = [
    "LOADED_FROM_FILES",
    "DeclineReason",
    "DonorOffer",
    "EvictionCause",
    "Glimpse",
    "InvalidPlanError",
    "InvalidTokenIdsError",
    "LookupRequest",
    "LookupResult",
    "Namespace",
    "OfferResult",
    "Outcome",
    "OutcomeKind",
    "Plan",
    "ProbeEnd",
    "ProviderStats",
    "Row",
    "RowKind",
    "SelfTestResult",
    "SelfTestState",
    "SemanticLookupProvider",
    "SemanticPrefixProvider",
    "SemanticPrefixResult",
    "Span",
    "TenantReport",
    "TokenIds",
    "as_token_ids",
    "digest_at_rank",
    "donor_id_of",
    "identity_of_weights",
    "joined_runs",
    "short_id",
    "tenant_of",
    "tenant_of_salt",
]
