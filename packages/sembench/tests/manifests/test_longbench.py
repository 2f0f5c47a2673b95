"""longbench-v1 and -v2 from local folders, and what is said when there is nothing to read."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from sembench.identity import load_manifest
from sembench.manifests import longbench
from sembench.manifests.items import BuildOptions
from sembench.manifests.longbench import V1Row, make_source_v1
from sembench.manifests.profiles import build_longbench_manifest
from sembench.schema import TRANSFORMS, InputError

Command = Callable[..., Result]
DOCUMENTED = (
    "instruction_variant same_evidence_new_task rag_reorder multi_donor_composite fuzzy_edit leading_evidence_new_task "
    "negative_control"
)


def test_the_documented_invocation_works_on_a_folder(sembench: Command, longbench_folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "made" / "M.jsonl"
    words = ["build", "--profile", "longbench-v1", "--source", longbench_folder, "--datasets", "qasper", "hotpotqa"]
    words += ["musique", "--max-items-per-dataset", "3", "--transforms", *DOCUMENTED.split()]
    words += ["--max-segments", "4", "--min-segment-chars", "400", "--output", output]
    result = sembench(*words)
    assert result.exit_code == 0, result.output
    items = load_manifest(output)
    assert len(items) == 3 * 3 * 7
    assert {item.transform for item in items} == set(DOCUMENTED.split())
    assert all(item.metadata["answer_in_evidence"] for item in items)


def test_a_negative_control_avoids_datasets_over_the_same_texts(longbench_folder: Path) -> None:
    options = BuildOptions("longbench-v1", 7, ("negative_control",))
    built = build_longbench_manifest(options, version=1, max_items_per_dataset=2, source=longbench_folder)
    for item in built.items:
        donor = item.donor_prompts[0].metadata
        if item.dataset in ("hotpotqa", "musique"):
            assert donor["dataset"] == "qasper"
        else:
            assert donor["dataset"] in ("hotpotqa", "musique")
        # Rows beyond the limit are there for this.
        assert donor["source_id"].endswith(("-2", "-3"))


def test_without_another_domain_the_donor_is_generated(longbench_folder: Path) -> None:
    options = BuildOptions("longbench-v1", 7, ("negative_control",))
    built = build_longbench_manifest(options, version=1, datasets=("musique",), source=longbench_folder)
    assert {item.donor_prompts[0].metadata["dataset"] for item in built.items} <= {
        "support_tickets",
        "contract_review",
        "log_triage",
    }


def test_the_folder_may_lie_anywhere(longbench_folder: Path, tmp_path: Path, sembench: Command) -> None:
    elsewhere = tmp_path / "other" / "place"
    elsewhere.parent.mkdir()
    outputs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    sembench("build", "--profile", "longbench-v1", "--source", longbench_folder, "-o", outputs[0])
    longbench_folder.rename(elsewhere)
    sembench("build", "--profile", "longbench-v1", "--source", elsewhere, "-o", outputs[1])
    assert outputs[0].read_bytes() == outputs[1].read_bytes()


def test_an_entity_swap_of_any_text_exchanges_names_and_figures(longbench_folder: Path) -> None:
    options = BuildOptions("longbench-v1", 7, ("entity_swap_control",))
    for item in build_longbench_manifest(options, version=1, source=longbench_folder).items:
        donor = item.donor_prompts[0].text
        assert item.answers[0] not in donor
        assert all(wrong in donor for wrong in item.metadata["donor_answers"])
        assert "The clerk" in donor
        assert "carried timber" in donor


def test_a_row_without_a_question_gets_the_task_of_its_dataset() -> None:
    row = V1Row.model_validate({"_id": "1", "context": "A report.", "answers": ["It reports."], "input": ""})
    assert make_source_v1(row, "gov_report").facts[0].question == "Write a summary of the report."
    assert make_source_v1(row, "lcc").facts[0].question == "Write the next line of the code."


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"_id": "1", "answers": []}', "context: Field required"),
        ('{"_id": "1", "context": "x", "answers": "y"}', "answers: Input should be a valid list"),
        ('{"_id": "1", "cont', "the file ends in the middle of a line"),
        ("[1]", "expected a JSON object"),
        ('{"_id": "1", "context": "half a pair: \\ud83d", "answers": []}', "surrogates not allowed"),
    ],
)
def test_a_malformed_row_is_named_by_file_line_and_field(
    sembench: Command, tmp_path: Path, line: str, complaint: str
) -> None:
    good = json.dumps({"_id": "0", "context": "some text", "answers": ["text"]})
    (tmp_path / "qasper.jsonl").write_text(f"{good}\n{line}", encoding="utf-8")
    result = sembench("build", "--profile", "longbench-v1", "--source", tmp_path, "-o", tmp_path / "m")
    assert result.exit_code == 2
    assert "qasper.jsonl:2: " in result.stderr
    assert complaint in result.stderr


def test_a_dataset_that_is_not_there_is_named_with_those_that_are(
    sembench: Command, longbench_folder: Path, tmp_path: Path
) -> None:
    words = ["build", "--profile", "longbench-v1", "--source", longbench_folder, "--datasets", "qasper", "lcc"]
    result = sembench(*words, "-o", tmp_path / "m")
    assert result.exit_code == 2
    assert "--datasets lcc: not in --source" in result.stderr
    assert "hotpotqa, musique, qasper" in result.stderr


def test_rows_of_one_id_are_refused(sembench: Command, tmp_path: Path) -> None:
    row = json.dumps({"_id": "0", "context": "some text", "answers": ["text"]})
    (tmp_path / "qasper.jsonl").write_text(f"{row}\n{row}\n", encoding="utf-8")
    result = sembench("build", "--profile", "longbench-v1", "--source", tmp_path, "-o", tmp_path / "m")
    assert result.exit_code == 2
    assert "'0' is there twice" in result.stderr


def test_an_empty_folder_is_refused(sembench: Command, tmp_path: Path) -> None:
    result = sembench("build", "--profile", "longbench-v1", "--source", tmp_path, "-o", tmp_path / "m")
    assert result.exit_code == 2
    assert "holds no .jsonl file and no text" in result.stderr


@pytest.mark.parametrize("as_array", [True, False])
def test_v2_reads_the_published_array_and_lines(
    sembench: Command, tmp_path: Path, v2_row: dict[str, Any], as_array: bool
) -> None:
    text = json.dumps([v2_row]) if as_array else json.dumps(v2_row) + "\n"
    (tmp_path / ("data.json" if as_array else "contracts.jsonl")).write_text(text, encoding="utf-8")
    result = sembench("build", "--profile", "longbench-v2", "--source", tmp_path, "-o", tmp_path / "m")
    assert result.exit_code == 0, result.output
    item = load_manifest(tmp_path / "m")[0]
    assert item.dataset == ("single-document-qa" if as_array else "contracts")
    assert item.answers == ("A", "Captain Maren Holt0")
    assert "C) a stranger" in item.input
    assert item.metadata["answer_in_evidence"] is True
    assert item.metadata["domain"] == "single-document-qa"


def test_v2_says_which_row_and_field_of_the_array_is_wrong(
    sembench: Command, tmp_path: Path, v2_row: dict[str, Any]
) -> None:
    (tmp_path / "data.json").write_text(json.dumps([v2_row, {**v2_row, "answer": "E"}]), encoding="utf-8")
    result = sembench("build", "--profile", "longbench-v2", "--source", tmp_path, "-o", tmp_path / "m")
    assert result.exit_code == 2
    assert "data.json: row 1: answer" in result.stderr


def test_a_text_file_is_a_source_whose_question_comes_from_itself(sembench: Command, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "ships").mkdir(parents=True)
    for number in range(2):
        text = "\n\n".join(
            f"The {name}{number} left the harbour of {name}stad with {n * 9137 + number} barrels aboard that morning. "
            f"Nobody on the {name}{number} had slept, and the pilot asked for {n}x{number} ropes before the tide."
            for n, name in enumerate(("Alba", "Brisa", "Corvo", "Delfin", "Estrela", "Faro", "Gaivota", "Halcon"), 11)
        )
        (folder / "ships" / f"log{number}.txt").write_text(text, encoding="utf-8")
    output = tmp_path / "m.jsonl"
    result = sembench("build", "--profile", "longbench-v1", "--source", folder, "-o", output)
    assert result.exit_code == 0, result.output
    items = load_manifest(output)
    assert {item.transform for item in items} == set(TRANSFORMS)
    assert {item.source_id for item in items} == {"ships/log0.txt", "ships/log1.txt"}
    for item in items:
        assert item.metadata["answer_in_evidence"] is True
        assert "____" in item.input
        assert item.answers[0] not in item.input


def test_a_file_that_is_no_text_is_named(sembench: Command, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good start \xff\xfe")
    result = sembench("build", "--profile", "longbench-v1", "--source", tmp_path, "-o", tmp_path / "m")
    assert result.exit_code == 2
    assert "not UTF-8 text at byte 11" in result.stderr


def test_an_unreachable_hub_points_to_source(
    sembench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    result = sembench("build", "--profile", "longbench-v1", "--datasets", "qasper", "-o", tmp_path / "m")
    assert result.exit_code == 2
    assert "not reachable" in result.stderr
    assert "--source DIR" in result.stderr


def test_a_missing_extra_is_named_with_the_way_around_it(
    sembench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    result = sembench("build", "--profile", "longbench-v2", "-o", tmp_path / "m")
    assert result.exit_code == 2
    assert "pip install 'sembench[longbench]'" in result.stderr
    assert "--source DIR" in result.stderr


def test_hub_files_are_pinned_to_whole_commits() -> None:
    assert all(len(revision) == 40 for revision in (longbench.V1_REVISION, longbench.V2_REVISION))
    assert longbench.V1_REVISION in longbench.v1_file("qasper", longbench.V1_REVISION)


def test_rows_inside_an_archive_are_read_through_the_package(
    longbench_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    archive = tmp_path / "data.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(longbench_folder / "qasper.jsonl", "data/qasper.jsonl")
    rows = list(longbench.hub_rows(f"zip://data/qasper.jsonl::{archive}"))
    assert [row["_id"] for row in rows] == [f"qasper-{n}" for n in range(4)]
    with pytest.raises(InputError, match="--source DIR"):
        list(longbench.hub_rows(f"zip://data/other.jsonl::{archive}"))
