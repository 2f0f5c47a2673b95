"""Manifests that somebody else wrote: read, or refused with file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import strategies as st

from sembench.identity import load_manifest
from sembench.manifests import write_manifest
from sembench.manifests.frozen import FrozenSpec, find_differences, freeze
from sembench.schema import InputError, ManifestItem, read_json
from semblend_core.testing.fuzzing import changed, damaged, documents, few_or_many, fuzz, refusal


@pytest.fixture
def lines(fixture_items: list[ManifestItem], tmp_path: Path) -> list[bytes]:
    path = tmp_path / "whole.jsonl"
    write_manifest(path, fixture_items[:2])
    return path.read_bytes().splitlines(keepends=True)


def as_line(item: dict[str, object]) -> bytes:
    return json.dumps(item).encode() + b"\n"


@few_or_many
def test_whatever_a_manifest_holds_it_is_read_or_refused_by_name(
    cases: int, lines: list[bytes], tmp_path: Path
) -> None:
    path = tmp_path / "manifest.jsonl"

    def check(line: bytes) -> None:
        path.write_bytes(lines[0] + line)
        error = refusal(InputError, lambda: load_manifest(path))
        if error is None:
            spec = freeze(path)
            assert find_differences(spec, spec) == []
        else:
            assert str(error).startswith(str(path))
            assert len(str(error)) < 20_000

    fuzz(cases, check, damaged(lines[1]) | documents | changed(json.loads(lines[1])).map(as_line))


@few_or_many
def test_whatever_a_frozen_record_holds_it_is_read_or_refused_by_name(
    cases: int, lines: list[bytes], tmp_path: Path
) -> None:
    manifest, path = tmp_path / "manifest.jsonl", tmp_path / "frozen.json"
    manifest.write_bytes(b"".join(lines))
    found = freeze(manifest)
    whole = found.model_dump(mode="json")

    def check(content: bytes) -> None:
        path.write_bytes(content)
        error = refusal(InputError, lambda: find_differences(read_json(path, FrozenSpec), found))
        assert error is None or str(error).startswith(str(path))

    said: st.SearchStrategy[bytes] = changed(whole).map(as_line)
    fuzz(cases, check, damaged(as_line(whole)) | documents | said)


def test_half_a_character_is_refused_where_it_stands(lines: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    item = {**json.loads(lines[1]), "metadata": {"note": "\ud800"}}
    path.write_bytes(lines[0] + as_line(item))
    with pytest.raises(InputError, match=r"manifest.jsonl:2: not JSON: .*surrogates not allowed"):
        load_manifest(path)
