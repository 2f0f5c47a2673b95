"""The published formats: manifests, results and engine summaries, as typed models with JSON Schemas."""

from sembench.schema.engine import EngineRequest, EngineSummary
from sembench.schema.manifest import (
    FACT_TRANSFORMS,
    MANIFEST_SCHEMA,
    PRIVACY_TRANSFORMS,
    SIMILARITY_TRANSFORMS,
    TRANSFORMS,
    DonorPrompt,
    ManifestItem,
)
from sembench.schema.reading import InputError, naming, read_json, read_jsonl, write_atomically
from sembench.schema.result import (
    RESULT_SCHEMA,
    Aggregate,
    Interval,
    NoiseFloor,
    NoisePair,
    Paired,
    Quality,
    Rate,
    RequestRecord,
    Result,
    RunIdentity,
    Spread,
    TransformSummary,
)

__all__ = [
    "FACT_TRANSFORMS",
    "MANIFEST_SCHEMA",
    "PRIVACY_TRANSFORMS",
    "RESULT_SCHEMA",
    "SIMILARITY_TRANSFORMS",
    "TRANSFORMS",
    "Aggregate",
    "DonorPrompt",
    "EngineRequest",
    "EngineSummary",
    "InputError",
    "Interval",
    "ManifestItem",
    "NoiseFloor",
    "NoisePair",
    "Paired",
    "Quality",
    "Rate",
    "RequestRecord",
    "Result",
    "RunIdentity",
    "Spread",
    "TransformSummary",
    "naming",
    "read_json",
    "read_jsonl",
    "write_atomically",
]
