"""The names adapters may use. A change here is a change of the contract with every adapter."""

from __future__ import annotations

import semblend_core

PUBLIC_NAMES = [
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


def test_the_public_surface_is_these_names_and_no_others() -> None:
    assert sorted(semblend_core.__all__) == sorted(PUBLIC_NAMES)
    assert len(set(semblend_core.__all__)) == len(semblend_core.__all__)


def test_every_public_name_exists() -> None:
    missing = [name for name in PUBLIC_NAMES if getattr(semblend_core, name, None) is None]
    assert missing == []


def test_a_star_import_brings_them_all() -> None:
    names: dict[str, object] = {}
    exec("from semblend_core import *", names)
    assert set(PUBLIC_NAMES) <= set(names)
