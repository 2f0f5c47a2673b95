"""Each flag of the published pages for ``build`` and ``run-offline``: what it changes, and nothing without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from sembench.identity import load_manifest
from sembench.schema import TRANSFORMS, ManifestItem, read_json
from sembench.schema import Result as ResultFile

Command = Callable[..., Result]
Build = Callable[..., list[ManifestItem]]
Measure = Callable[..., ResultFile]
TWO = ("--datasets", "qasper", "musique")


@pytest.fixture
def build(sembench: Command, longbench_folder: Path, tmp_path: Path) -> Build:
    def run(*words: object) -> list[ManifestItem]:
        output = tmp_path / "made.jsonl"
        base = ("build", "--profile", "longbench-v1", "--source", longbench_folder, "--output", output)
        done = sembench(*base, *words)
        assert done.exit_code == 0, done.output
        return load_manifest(output)

    return run


@pytest.fixture
def measure(sembench: Command, tmp_path: Path) -> Measure:
    """``run-offline`` on the fixture's first items."""
    manifest = tmp_path / "fixture.jsonl"
    assert sembench("build", "--profile", "fixture", "--output", manifest).exit_code == 0

    def run(*words: object, output: Path = tmp_path / "result.json") -> ResultFile:
        chosen = ("--manifest", manifest, "--max-items", "3", "--output", output)
        done = sembench("run-offline", *chosen, *words)
        assert done.exit_code == 0, done.output
        return read_json(output, ResultFile)

    return run


def test_profile_chooses_what_is_built(sembench: Command, build: Build, tmp_path: Path) -> None:
    sembench("build", "--profile", "fixture", "--output", tmp_path / "fixture.jsonl")
    assert {item.metadata["builder"]["profile"] for item in load_manifest(tmp_path / "fixture.jsonl")} == {"fixture"}
    assert {item.metadata["builder"]["profile"] for item in build(*TWO)} == {"longbench-v1"}


def test_output_is_where_the_manifest_goes(sembench: Command, tmp_path: Path) -> None:
    for name in ("one.jsonl", "deep/two.jsonl"):
        assert sembench("build", "--profile", "fixture", "--output", tmp_path / name).exit_code == 0
        assert len(load_manifest(tmp_path / name)) == 14


def test_datasets_are_those_named_after_one_flag(build: Build) -> None:
    assert {item.dataset for item in build()} == {"qasper", "hotpotqa", "musique"}
    assert {item.dataset for item in build(*TWO)} == {"qasper", "musique"}


def test_max_items_per_dataset_limits_the_rows(build: Build) -> None:
    def rows(items: list[ManifestItem]) -> set[str]:
        return {item.source_id for item in items if item.dataset == "qasper"}

    assert len(rows(build())) == 4
    assert rows(build("--max-items-per-dataset", "2")) == {"qasper-0", "qasper-1"}


def test_transforms_are_those_named_after_one_flag(build: Build) -> None:
    assert {item.transform for item in build(*TWO)} == set(TRANSFORMS)
    named = ("rag_reorder", "fuzzy_edit", "negative_control")
    assert {item.transform for item in build(*TWO, "--transforms", *named)} == set(named)


@pytest.mark.parametrize(
    ("flags", "donors"),
    [
        ((), 4),
        (("--max-segments", "2"), 2),
        (("--max-segments", "3"), 3),
        (("--min-segment-chars", "700"), 3),
    ],
)
def test_segments_are_as_many_and_as_long_as_asked_for(build: Build, flags: tuple[str, ...], donors: int) -> None:
    for item in build(*TWO, "--transforms", "multi_donor_composite", *flags):
        assert len(item.donor_prompts) == donors


def test_manifest_is_what_is_measured(sembench: Command, build: Build, measure: Measure, tmp_path: Path) -> None:
    fixture = {record.item_id for record in measure().requests}
    build(*TWO, "--transforms", "rag_reorder")
    other = measure("--manifest", tmp_path / "made.jsonl")
    assert other.run.manifest_sha256 != measure().run.manifest_sha256
    assert not fixture & {record.item_id for record in other.requests}


def test_output_is_where_the_result_goes(measure: Measure, tmp_path: Path) -> None:
    assert measure(output=tmp_path / "elsewhere" / "r.json").aggregate.items == 3
    assert not (tmp_path / "result.json").exists()


def test_block_size_is_the_unit_of_every_block_rate(measure: Measure) -> None:
    small, large = measure("--block-size", "16"), measure("--block-size", "64")
    assert (small.aggregate.block_size, large.aggregate.block_size) == (16, 64)
    for fine, coarse in zip(small.requests, large.requests, strict=True):
        assert fine.prompt_tokens == coarse.prompt_tokens
        assert (fine.total_blocks or 0) // 4 == coarse.total_blocks


def test_tokenizer_decides_what_a_token_is(measure: Measure) -> None:
    words, subwords = measure(), measure("--tokenizer", "smollm2")
    assert words.config["tokenizer"] == "words-v1"
    assert subwords.config["tokenizer"] != "words-v1"
    assert words.config["tokenizer_digest"] != subwords.config["tokenizer_digest"]
    counts = [[record.prompt_tokens for record in result.requests] for result in (words, subwords)]
    assert counts[0] != counts[1]
