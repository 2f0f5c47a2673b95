"""The JSON Schemas of the published formats, written from the models."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from sembench.schema.engine import ENGINE_SUMMARY_SCHEMA, EngineSummary
from sembench.schema.manifest import MANIFEST_SCHEMA, ManifestItem
from sembench.schema.result import RESULT_SCHEMA, Result

PUBLISHED: dict[str, type[BaseModel]] = {
    MANIFEST_SCHEMA: ManifestItem,
    RESULT_SCHEMA: Result,
    ENGINE_SUMMARY_SCHEMA: EngineSummary,
}
"""Schema version to the model of one document: a line of a manifest, a result file, an engine summary."""


def schema_files() -> dict[str, str]:
    """File name to its text, sorted keys: the same models give the same bytes."""
    return {
        f"{version}.schema.json": json.dumps(_schema(version, model), indent=2, sort_keys=True) + "\n"
        for version, model in PUBLISHED.items()
    }


def _schema(version: str, model: type[BaseModel]) -> dict[str, Any]:
    return {
        **model.model_json_schema(mode="validation"),
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{version.replace('.', ':')}",
        "version": version,
    }
