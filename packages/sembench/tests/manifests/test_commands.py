"""build and checksum-manifest, as they are typed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from sembench.identity import load_manifest
from sembench.schema import TRANSFORMS, ManifestItem

Command = Callable[..., Result]


def test_the_fixture_is_built_into_a_folder_that_is_not_there_yet(sembench: Command, tmp_path: Path) -> None:
    output = tmp_path / "manifests" / "fixture.jsonl"
    result = sembench("build", "--profile", "fixture", "--output", output)
    assert result.exit_code == 0, result.output
    assert hashlib.sha256(output.read_bytes()).hexdigest() in result.stdout
    assert {item.transform for item in load_manifest(output)} == set(TRANSFORMS)


def test_lines_have_sorted_keys_and_one_item_each(
    sembench: Command, tmp_path: Path, fixture_items: list[ManifestItem]
) -> None:
    sembench("build", "--profile", "fixture", "-o", tmp_path / "m")
    lines = (tmp_path / "m").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(fixture_items)
    for line in lines:
        document = json.loads(line)
        assert list(document) == sorted(document)
        assert document["benchmark_version"] == "sembench.manifest.v1"


def test_the_command_and_the_library_build_the_same(
    sembench: Command, tmp_path: Path, fixture_items: list[ManifestItem]
) -> None:
    sembench("build", "--profile", "fixture", "-o", tmp_path / "m")
    assert load_manifest(tmp_path / "m") == fixture_items


def test_bands_domains_and_transforms_take_several_words(sembench: Command, tmp_path: Path) -> None:
    words = ["build", "--profile", "synthetic-v1", "--length-bands", "600", "1k", "--sources-per-band", "2"]
    words += ["--datasets", "log_triage", "contract_review", "--transforms", "exact_repeat", "negative_control"]
    result = sembench(*words, "--seed", "3", "-o", tmp_path / "m")
    assert result.exit_code == 0, result.output
    items = load_manifest(tmp_path / "m")
    assert len(items) == 2 * 2 * 2 * 2
    assert {item.metadata["length_band"] for item in items} == {600, 1000}
    assert {item.dataset for item in items} == {"log_triage", "contract_review"}
    assert items[0].metadata["builder"]["options"]["bands_tokens"] == [600, 1000]


def test_max_items_per_dataset_limits_the_documents_of_a_domain(sembench: Command, tmp_path: Path) -> None:
    words = ["build", "--profile", "synthetic-v1", "--length-bands", "600", "--sources-per-band", "5"]
    sembench(*words, "--max-items-per-dataset", "2", "--transforms", "exact_repeat", "-o", tmp_path / "m")
    assert len(load_manifest(tmp_path / "m")) == 2 * 3


def test_what_could_not_be_built_is_said(sembench: Command, tmp_path: Path) -> None:
    words = ["build", "--profile", "synthetic-v1", "--length-bands", "300", "--transforms"]
    result = sembench(*words, "exact_repeat", "multi_turn", "-o", tmp_path / "m")
    assert result.exit_code == 0
    assert "left out: multi_turn: needs 3 segments" in result.stdout
    result = sembench(*words, "multi_turn", "-o", tmp_path / "none")
    assert result.exit_code == 2
    assert "no item could be built" in result.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--profile", "fixture", "--length-bands", "2k"], "--length-bands is for synthetic-v1"),
        (["--profile", "fixture", "--datasets", "qasper"], "--datasets is for"),
        (["--profile", "synthetic-v1", "--hf-revision", "abc"], "--hf-revision is for longbench-v1"),
        (["--profile", "synthetic-v1", "--length-bands", "2k", "long"], "'long': expected tokens"),
        (["--profile", "synthetic-v1", "--length-bands", "7"], "'7': expected tokens"),
        (["--profile", "synthetic-v1", "--datasets", "poems"], "'poems' is none of the generated domains"),
        (["--profile", "fixture", "--transforms", "translate"], "'translate' is none of exact_repeat"),
        (["--profile", "nothing"], "Invalid value for '--profile'"),
        (["--profile", "longbench-v1", "--source", "/no/such/folder"], "does not exist"),
    ],
)
def test_a_wrong_option_is_named(sembench: Command, tmp_path: Path, words: list[str], complaint: str) -> None:
    result = sembench("build", *words, "-o", tmp_path / "m")
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert not (tmp_path / "m").exists()


def test_a_file_that_cannot_be_written_is_named(sembench: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = sembench("build", "--profile", "fixture", "-o", tmp_path / "file" / "m.jsonl")
    assert result.exit_code == 2
    assert f"--output {tmp_path / 'file' / 'm.jsonl'}: " in result.stderr
    result = sembench("schemas", "--output-dir", tmp_path / "file" / "schemas")
    assert result.exit_code == 2
    assert "--output-dir" in result.stderr


def test_checksum_is_that_of_sha256sum(sembench: Command, tmp_path: Path) -> None:
    manifest = tmp_path / "m.jsonl"
    sembench("build", "--profile", "fixture", "-o", manifest)
    result = sembench("checksum-manifest", "--manifest", manifest, "--output", tmp_path / "m.sha256")
    assert result.exit_code == 0
    assert result.stdout == f"{hashlib.sha256(manifest.read_bytes()).hexdigest()}  {manifest}\n"
    assert (tmp_path / "m.sha256").read_text(encoding="utf-8") == result.stdout


@pytest.mark.parametrize("command", ["checksum-manifest", "audit-manifest"])
def test_a_torn_manifest_is_refused_with_its_line(sembench: Command, tmp_path: Path, command: str) -> None:
    manifest = tmp_path / "m.jsonl"
    sembench("build", "--profile", "fixture", "-o", manifest)
    manifest.write_bytes(manifest.read_bytes()[:-200])
    result = sembench(command, "--manifest", manifest)
    assert result.exit_code == 2
    assert f"{manifest}:14: not JSON" in result.stderr
    assert "ends in the middle of a line" in result.stderr


@pytest.mark.parametrize(
    "command", ["build", "checksum-manifest", "audit-manifest", "freeze", "verify-frozen", "schemas"]
)
def test_help_has_an_example(sembench: Command, command: str) -> None:
    result = sembench(command, "--help")
    assert result.exit_code == 0
    assert f"sembench {command} --" in result.stdout
