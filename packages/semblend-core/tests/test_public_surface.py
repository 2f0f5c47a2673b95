"""The names adapters may use. A change here is a change of the contract with every adapter."""

from __future__ import annotations

import importlib

import pytest

import semblend_core

PUBLIC_NAMES = [
    "ENGINE_COUNTERS",
    "ENGINE_GAUGES",
    "ENGINE_LABELLED_COUNTERS",
    "AuditSink",
    "CostModel",
    "DeclineReason",
    "DonorOffer",
    "EarlierDonors",
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
    "Wish",
    "__version__",
    "as_token_ids",
    "donor_id_of",
    "create_provider",
    "identity_of_weights",
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


MODULE_NAMES = {
    "semblend_core.settings": [
        "ByteSize",
        "Choice",
        "DeclaredSettings",
        "Flag",
        "Number",
        "QualityTier",
        "SettingError",
        "Settings",
        "Text",
        "Unset",
        "Whole",
        "setting",
    ],
    "semblend_core.recompute": [
        "Corrected",
        "FullRecompute",
        "KVDeviation",
        "MeanShift",
        "Oracle",
        "QueryAttention",
        "Random",
        "Recompute",
        "RecomputePolicy",
        "Reuse",
        "RotateOnly",
        "Scores",
        "SeamAndTail",
        "SeamHead",
        "SharedSink",
        "TierChoice",
        "choose_policy",
        "most_alike",
    ],
    "semblend_core.kv": [
        "DonorKey",
        "DonorKv",
        "DonorStore",
        "Gone",
        "InvalidKvError",
        "MeanShiftCorrection",
        "Moves",
        "PagedKv",
        "PagedMeanShift",
        "Rotation",
        "SlotTable",
        "StoreDecline",
        "StoreDirectoryError",
        "StoreOptions",
        "Tier",
        "Transfer",
        "TransferFailedError",
        "TransferPendingError",
        "UnsupportedRotationError",
        "relocate",
        "relocate_spans",
        "pairs_of_equal_tokens",
        "why_pairs_disagree",
    ],
    "semblend_core.reference": [
        "SMOLLM2",
        "ModelNotLoadedError",
        "Observation",
        "Prefill",
        "ReferenceEngine",
        "UnsupportedModelError",
        "Workspace",
        "default_model_folder",
        "load_default_tokenizer",
        "prefill_reusing",
    ],
}


@pytest.mark.parametrize("module", MODULE_NAMES)
def test_the_public_modules_export_these_names_and_no_others(module: str) -> None:
    if module in ("semblend_core.kv", "semblend_core.reference"):
        pytest.importorskip("torch", reason="needs the extra `gpu`")
    if module == "semblend_core.reference":
        pytest.importorskip("transformers", reason="needs the extra `reference`")
    found = importlib.import_module(module)
    assert sorted(found.__all__) == sorted(MODULE_NAMES[module])
    assert [name for name in MODULE_NAMES[module] if getattr(found, name, None) is None] == []
