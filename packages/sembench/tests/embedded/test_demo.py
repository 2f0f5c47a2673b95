"""The demo from the command line, on a small model: what is written, and what is on the screen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from sembench.cli import main
from sembench.embedded.demo import LABELS, build_demo_items
from sembench.identity import load_manifest
from sembench.schema import Result, read_json


@pytest.fixture(scope="module")
def shown(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Standard output, and the folder that the demo wrote."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    command = [sys.executable, "-m", "sembench", "demo", "--model", str(tiny_model), "--output-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, folder


def test_it_writes_manifest_result_and_a_page_that_needs_no_network(shown: tuple[str, Path]) -> None:
    _, folder = shown
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.jsonl", "report.html", "result.json"]
    items = load_manifest(folder / "manifest.jsonl")
    assert items == build_demo_items(seed=7)
    result = read_json(folder / "result.json", Result)
    assert result.run.kind == "embedded"
    assert result.run.seed == 7
    assert {record.item_id for record in result.requests} == {item.item_id for item in items}
    page = (folder / "report.html").read_text()
    assert "SemBench report" in page
    assert "src=" not in page.replace('src="data:', "")


def test_every_prompt_is_on_one_screen_with_its_times_and_tokens(shown: tuple[str, Path]) -> None:
    output, folder = shown
    lines = output.splitlines()
    assert len(lines) <= 42
    assert max(cell_len(line) for line in lines[:-1]) <= 100
    for label in LABELS.values():
        assert any(line.strip().startswith(label) for line in lines), label
    warm = [record for record in read_json(folder / "result.json", Result).requests if record.arm == "warm"]
    for record in warm:
        assert f"{record.computed_tokens:,}" in output
    assert lines[-1] == f"Report: {folder.resolve() / 'report.html'}"


def test_changed_prompts_reuse_and_the_control_does_not(shown: tuple[str, Path]) -> None:
    result = read_json(shown[1] / "result.json", Result)
    reused = {record.transform: record.confirmed_tokens for record in result.requests if record.arm == "warm"}
    for transform in ("instruction_variant", "same_evidence_new_task", "rag_reorder", "multi_donor_composite"):
        assert (reused[transform] or 0) > 0, transform
    assert reused["negative_control"] == 0
    assert reused["exact_repeat"] == 0


def test_answers_stand_side_by_side_with_what_the_document_says(shown: tuple[str, Path]) -> None:
    lines = shown[0].splitlines()
    heading = next(number for number, line in enumerate(lines) if "cold" in line and "with reuse" in line)
    rows = "\n".join(lines[heading:])
    for transform, answer in (
        ("instruction_variant", "Ingrid Falk"),
        ("rag_reorder", "1887"),
        ("multi_donor_composite", "Marta Olsen"),
        ("entity_swap_control", "Marta Olsen"),
    ):
        (row,) = [line for line in rows.splitlines() if line.strip().startswith(f"{LABELS[transform]}:")]
        assert answer in row


def test_the_same_seed_gives_the_same_manifest_and_another_seed_another() -> None:
    assert build_demo_items(seed=3) == build_demo_items(seed=3)
    assert build_demo_items(seed=3) != build_demo_items(seed=4)


def test_an_output_folder_that_is_a_file_is_refused_by_name(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    for folder in (blocked, blocked / "below"):
        result = CliRunner().invoke(main, ["demo", "--output-dir", str(folder)])
        assert result.exit_code == 2
        assert "--output-dir" in result.output
        assert "Traceback" not in result.output
