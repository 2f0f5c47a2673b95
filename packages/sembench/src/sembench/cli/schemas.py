"""``sembench schemas``: the JSON Schemas of the published formats, written from the models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from sembench.laboratory.config import EXPERIMENT_SCHEMA, ExperimentConfig
from sembench.laboratory.results import LABORATORY_SCHEMA, LaboratoryResult
from sembench.laboratory.trace_schema import TRACE_SCHEMA, TraceRequest
from sembench.schema import naming, write_atomically
from sembench.schema.engine import ENGINE_SUMMARY_SCHEMA, EngineSummary
from sembench.schema.manifest import MANIFEST_SCHEMA, ManifestItem
from sembench.schema.result import RESULT_SCHEMA, Result

PUBLISHED: dict[str, type[BaseModel]] = {
    MANIFEST_SCHEMA: ManifestItem,
    RESULT_SCHEMA: Result,
    ENGINE_SUMMARY_SCHEMA: EngineSummary,
    TRACE_SCHEMA: TraceRequest,
    EXPERIMENT_SCHEMA: ExperimentConfig,
    LABORATORY_SCHEMA: LaboratoryResult,
}
"""Schema version to the model of one document: a line of a manifest or a trace, or a whole file."""


@click.command()
@click.option(
    "--output-dir",
    default=Path("docs/schemas"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the schemas; made if it is not there.",
)
def schemas(output_dir: Path) -> None:
    """Write the JSON Schemas of the formats: a manifest's item, a result, an engine summary, and
    of the laboratory a trace's request, an experiment and a result.

    \b
    Example:
      sembench schemas --output-dir schemas/

    Manifests and traces are JSON lines: their schema is that of one line. An experiment is YAML.
    """
    from sembench.cli.schemas import schema_files

    for name, text in schema_files().items():
        with naming(f"--output-dir {output_dir}"):
            write_atomically(output_dir / name, text)
        click.echo(output_dir / name)


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
