"""The contract between engines and SemBlend: two narrow ABCs and their frozen value types.

Read in this order: ``plan`` (what is reused and computed), ``lookup`` (what an engine calls), ``namespace``
(who may share), ``outcome`` (what is counted), ``self_test`` (whether KV may be loaded), ``prefix`` (the
one-prefix contract for radix caches).
"""

from semblend_core.contract.lookup import (
    DonorOffer,
    Evidence,
    LookupRequest,
    LookupResult,
    OfferResult,
    ProviderStats,
    SemanticLookupProvider,
)
from semblend_core.contract.namespace import Namespace
from semblend_core.contract.outcome import DeclineReason, Outcome, OutcomeKind
from semblend_core.contract.plan import InvalidPlanError, Plan, Row, RowKind, Span, gap_rows, joined_runs
from semblend_core.contract.prefix import SemanticPrefixProvider, SemanticPrefixResult
from semblend_core.contract.self_test import SelfTestResult, SelfTestState
from semblend_core.contract.tokens import MAX_TOKEN_ID, InvalidTokenIdsError, TokenIds, as_token_ids, donor_id_of
from semblend_core.contract.weights import identity_of_weights

__all__ = [
    "MAX_TOKEN_ID",
    "DeclineReason",
    "DonorOffer",
    "Evidence",
    "InvalidPlanError",
    "InvalidTokenIdsError",
    "LookupRequest",
    "LookupResult",
    "Namespace",
    "OfferResult",
    "Outcome",
    "OutcomeKind",
    "Plan",
    "ProviderStats",
    "Row",
    "RowKind",
    "SelfTestResult",
    "SelfTestState",
    "SemanticLookupProvider",
    "SemanticPrefixProvider",
    "SemanticPrefixResult",
    "Span",
    "TokenIds",
    "as_token_ids",
    "donor_id_of",
    "gap_rows",
    "identity_of_weights",
    "joined_runs",
]
