"""The names adapters may use. A change here is a change of the contract with every adapter."""

from __future__ import annotations

import importlib

import pytest

import semblend_core

PUBLIC_NAMES = [
    "AuditSink",
    "CostModel",
    "DeclineReason",
    "DonorOffer",
    "ENGINE_COUNTERS",
    "ENGINE_GAUGES",
    "ENGINE_LABELLED_COUNTERS",
    "ENGINE_STATES",
    "LOADED_FROM_FILES",
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
    "ProbeEnd",
    "ProviderStats",
    "QualityMetrics",
    "QualityNews",
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
    "TenantReport",
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
    "tenant_of_salt",
    "what_is_on",
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
        "Never",
        "Number",
        "QualityTier",
        "SettingError",
        "Settings",
        "TenantIds",
        "Text",
        "Unset",
        "Whole",
        "setting",
    ],
    "semblend_core.recompute": [
        "ROW_SHIFT",
        "Corrected",
        "FullRecompute",
        "KVDeviation",
        "MeanShift",
        "Oracle",
        "Pooling",
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
        "Selection",
        "SharedSink",
        "TierChoice",
        "choose_policy",
    ],
    "semblend_core.pins": ["Pins", "Relied", "changes_since", "take_pins", "why_changed"],
    "semblend_core.serving": [
        "ANSWER_TOKENS",
        "LIKELIEST",
        "MOST_FAILED_PROBES",
        "Arrival",
        "CaptureOrder",
        "Claim",
        "Comparison",
        "CorrectionOrder",
        "CostGate",
        "DonorBook",
        "DonorKeeper",
        "DonorName",
        "FetchOrders",
        "Finding",
        "HotOpenings",
        "Landed",
        "Lineage",
        "LineageBook",
        "LoadOrder",
        "Namespaces",
        "Opening",
        "Part",
        "ProbeOrder",
        "ProbeTrust",
        "Probing",
        "QualityGuard",
        "RequestBook",
        "RequestLife",
        "RoundTime",
        "Rows",
        "Scored",
        "Seeker",
        "SelfTest",
        "Stage",
        "StepWork",
        "Tenants",
        "Wish",
        "WorkerNews",
        "claim_by_scores",
        "claim_by_tier",
        "claim_of",
        "contain",
        "contained",
        "may_share",
        "probing_of",
        "rows_by_scores",
        "shown_as_cached",
        "take_rows",
        "token_ids_of",
        "tokens_to_keep",
    ],
    "semblend_core.serving.tree": [
        "ExactTree",
        "InPlace",
        "KeptDonors",
        "Load",
        "Loading",
        "SlotPool",
        "TreeDonors",
        "TreeLife",
        "TreeLineages",
        "TreeMatch",
    ],
    "semblend_core.serving.worker": [
        "KvMemory",
        "LayerCorrection",
        "Look",
        "Move",
        "PagedMemory",
        "WorkerSide",
    ],
    "semblend_core.kv": [
        "DeviceSlots",
        "DonorKv",
        "DonorStore",
        "InvalidKvError",
        "KvShape",
        "LearnedShift",
        "MeanShiftCorrection",
        "Moves",
        "PageFolder",
        "PagedKv",
        "PagedMeanShift",
        "QuestionAttention",
        "Rotation",
        "RotationProof",
        "SlotTable",
        "StoreDirectoryError",
        "StoreOptions",
        "Transfer",
        "UnsupportedRotationError",
        "find_learned_shift",
        "middle_layer",
        "relocate",
        "relocate_spans",
        "why_keys_do_not_move",
    ],
    "semblend_core.reference": [
        "ModelNotLoadedError",
        "Observation",
        "Prefill",
        "ReferenceEngine",
        "SMOLLM2",
        "UnsupportedModelError",
        "Workspace",
        "default_model_folder",
        "load_default_tokenizer",
        "prefill_reusing",
    ],
    "semblend_core.testing.benchmarks": [
        "Answer",
        "EngineUnderTest",
        "Interval",
        "Material",
        "Pairs",
        "Prompts",
        "add_prompt_options",
        "bootstrapped",
        "conversation",
        "deliver",
        "fidelity",
        "hostile",
        "never_slower",
        "options_of",
        "proving",
        "saturation",
    ],
    "semblend_core.testing": [
        "BOUNDS_OF_BOOKS",
        "Fault",
        "Marker",
        "ReferenceProvider",
        "Served",
        "Subject",
        "TokenEngine",
        "divergence",
        "found_in_files",
        "found_in_memory",
        "held_by",
        "listen_to",
        "passage",
        "shallow_model_folder",
        "wait_until",
    ],
}


NEED_TORCH = (
    "semblend_core.kv",
    "semblend_core.reference",
    "semblend_core.serving.tree",
    "semblend_core.serving.worker",
)


@pytest.mark.parametrize("module", MODULE_NAMES)
def test_the_public_modules_export_these_names_and_no_others(module: str) -> None:
    if module in NEED_TORCH:
        pytest.importorskip("torch", reason="needs the extra `gpu`")
    if module == "semblend_core.reference":
        pytest.importorskip("transformers", reason="needs the extra `reference`")
    found = importlib.import_module(module)
    assert sorted(found.__all__) == sorted(MODULE_NAMES[module])
    assert [name for name in MODULE_NAMES[module] if getattr(found, name, None) is None] == []
