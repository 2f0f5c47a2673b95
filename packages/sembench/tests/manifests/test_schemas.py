"""The published JSON Schemas are those of the code, and describe what is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from sembench.cli.schemas import schema_files

WITHOUT_VERSION = {"sembench.trace.v1", "sembench.experiment.v1"}
"""SemanticKV's traces and experiments carry none, and are read as they are."""
_PUBLISHED = Path(__file__).parents[4] / "docs" / "schemas"


@pytest.mark.parametrize("name", sorted(schema_files()))
def test_the_published_schema_is_current(name: str) -> None:
    if not _PUBLISHED.is_dir():
        pytest.skip("the package's tests run outside its repository")
    hint = "run: sembench schemas --output-dir docs/schemas"
    assert (_PUBLISHED / name).read_text(encoding="utf-8") == schema_files()[name], hint


def test_the_command_writes_all_of_them(sembench: Callable[..., Result], tmp_path: Path) -> None:
    result = sembench("schemas", "--output-dir", tmp_path / "new")
    assert result.exit_code == 0
    assert {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "new").iterdir()} == schema_files()


def test_each_has_an_id_and_the_version_that_its_documents_carry() -> None:
    for name, text in schema_files().items():
        schema = json.loads(text)
        version = name.removesuffix(".schema.json")
        assert schema["$id"] == f"urn:{version.replace('.', ':')}"
        assert schema["version"] == version
        if version not in WITHOUT_VERSION:
            carried = schema["properties"].get("schema_version") or schema["properties"]["benchmark_version"]
            assert carried["const"] == version
