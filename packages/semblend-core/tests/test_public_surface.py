"""The names adapters may use. A change here is a change of the contract with every adapter."""

from __future__ import annotations

import importlib

import pytest

import semblend_core

PUBLIC_NAMES = [
    "MAX_TOKEN_ID",
    "ENGINE_COUNTERS",
    "ENGINE_GAUGES",
    "ENGINE_LABELLED_COUNTERS",
    "ENGINE_STATES",
    "AuditLog",
    "AuditSink",
    "CostModel",
    "DeclineReason",
    "DonorCaptured",
    "DonorOffer",
    "EarlierDonors",
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
    "SelfTestResult",
    "SelfTestState",
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
    "gap_rows",
    "identity_of_weights",
    "joined_runs",
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
    "semblend_core.recompute": [
        "Corrected",
        "FullRecompute",
        "KVDeviation",
        "MeanShift",
        "Oracle",
        "Probe",
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
        "context_likeness",
        "from_one_place",
        "most_alike",
    ],
    "semblend_core.kv": [
        "DonorKey",
        "DonorKv",
        "DonorStore",
        "Gone",
        "InvalidKvError",
        "MeanShiftCorrection",
        "Miss",
        "Moves",
        "PagedKv",
        "PagedMeanShift",
        "PutResult",
        "Quarantine",
        "RecoveredDonor",
        "Rotation",
        "RotationProof",
        "SelfTestCache",
        "SelfTestIdentity",
        "SelfTestReport",
        "SelfTestSubject",
        "SlotTable",
        "StoreDecline",
        "StoreDirectoryError",
        "StoreOptionError",
        "StoreOptions",
        "StoreStats",
        "StoredKv",
        "Tier",
        "TierStats",
        "Transfer",
        "TransferFailedError",
        "TransferPendingError",
        "UnsupportedRotationError",
        "UploadedMoves",
        "relocate",
        "relocate_spans",
        "relocate_uploaded",
        "run_self_test",
    ],
    "semblend_core.reference": [
        "SMOLLM2",
        "EngineProbe",
        "KvGeometry",
        "ModelNotLoadedError",
        "Observation",
        "Prefill",
        "ReferenceEngine",
        "ReferenceSubject",
        "ReusingPrefill",
        "UnsupportedModelError",
        "Workspace",
        "default_model_file",
        "default_model_folder",
        "load_default_tokenizer",
        "load_model",
        "prefill_reusing",
        "row_positions",
        "write_default_model",
    ],
}


@pytest.mark.parametrize("module", MODULE_NAMES)
def test_the_public_modules_export_these_names_and_no_others(module: str) -> None:
    if module != "semblend_core.recompute":
        pytest.importorskip("torch", reason="needs the extra `gpu`")
    if module == "semblend_core.reference":
        pytest.importorskip("transformers", reason="needs the extra `reference`")
    found = importlib.import_module(module)
    assert sorted(found.__all__) == sorted(MODULE_NAMES[module])
    assert [name for name in MODULE_NAMES[module] if getattr(found, name, None) is None] == []
