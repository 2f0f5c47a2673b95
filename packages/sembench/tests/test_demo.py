from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sembench.cli import main
from sembench.demo.run import DemoRow, run_demo


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DemoRow]:
    return {row.label: row for row in run_demo(tmp_path_factory.mktemp("demo"), seed=7)}


def test_every_token_is_exact_reused_or_computed(rows: dict[str, DemoRow]) -> None:
    for row in rows.values():
        assert row.exact_prefix + (row.reused or 0) + row.computed == row.prompt_tokens


def test_a_repeated_prompt_is_left_to_prefix_caching(rows: dict[str, DemoRow]) -> None:
    row = rows["same prompt again"]
    assert row.outcome == "exact_prefix"
    assert row.reused is None
    assert row.computed == row.cold_computed


def test_changed_prompts_compute_far_less_than_with_prefix_caching_alone(rows: dict[str, DemoRow]) -> None:
    for label in ("new instruction", "reordered", "from 4 requests"):
        row = rows[label]
        assert row.outcome == "materialized"
        assert row.computed < 0.3 * row.cold_computed
    assert rows["from 4 requests"].donors == 4


def test_the_control_reuses_nothing(rows: dict[str, DemoRow]) -> None:
    row = rows["unrelated control"]
    assert row.reused is None
    assert row.computed == row.cold_computed
    assert row.outcome == "declined: no_spans"


def test_the_command_prints_the_table_and_writes_a_self_contained_report(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sembench", "demo", "--output-dir", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "new instruction" in done.stdout
    page = (tmp_path / "out" / "report.html").read_text()
    assert "http://" not in page
    assert "https://" not in page
    assert len(json.loads((tmp_path / "out" / "demo.json").read_text())) == 6


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("first", "second"):
        run_demo(tmp_path / name, seed=3)
    assert (tmp_path / "first/demo.json").read_bytes() == (tmp_path / "second/demo.json").read_bytes()


def test_an_output_folder_that_is_a_file_is_refused_by_name(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    result = CliRunner().invoke(main, ["demo", "--output-dir", str(blocked)])
    assert result.exit_code == 2
    assert "--output-dir" in result.output


def test_a_folder_that_cannot_be_made_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(main, ["demo", "--output-dir", str(tmp_path / "file" / "below")])
    assert result.exit_code == 1
    assert "--output-dir" in result.output
    assert "Traceback" not in result.output
