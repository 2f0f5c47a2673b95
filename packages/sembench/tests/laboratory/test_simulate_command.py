from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sembench.cli import main
from sembench.laboratory import outputs
from sembench.laboratory.config import shipped_experiments
from sembench.laboratory.plots import EXPERIMENT_FIGURES
from sembench.laboratory.results import LaboratoryResult
from sembench.schema import read_json

PUBLISHED_FIGURES = {
    "policy_comparison_avg_ttft.png",
    "policy_comparison_hit_rate.png",
    "tokens_saved_by_policy.png",
    "evictions_by_semantic_type.png",
    "adaptive_weights_over_time.png",
    "memory_utilization_over_time.png",
}


def sembench(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_one_experiment_writes_its_folder(tmp_path: Path) -> None:
    done = sembench(
        *("simulate", "--config", "low_memory_rag_stress", "--seeds", 3, "--requests", 40, "--policies", "lru", "fifo"),
        *("--output-dir", tmp_path),
    )
    assert done.exit_code == 0, done.output
    (folder,) = tmp_path.iterdir()
    assert folder.name.endswith("Z_low_memory_rag_stress")
    assert {file.name for file in folder.iterdir()} == {"results.json", "metrics.csv", "summary.md", *PUBLISHED_FIGURES}
    assert set(EXPERIMENT_FIGURES) == PUBLISHED_FIGURES
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in PUBLISHED_FIGURES)
    result = read_json(folder / "results.json", LaboratoryResult)
    assert [each.policy for each in result.policies] == ["lru", "fifo"]
    assert result.policies[1].avg_ttft_ms.n == 3
    assert result.policies[1].avg_ttft_ms.low is not None
    lines = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert len(lines) == 3 * 2
    assert list(lines[0])[-1] == "belady_avg_ttft_ms"
    assert all(float(line["byte_ratio"]) <= float(line["belady_byte_ratio"]) for line in lines)
    summary = (folder / "summary.md").read_text()
    assert "simulated estimates" in summary
    assert "|  | lru | fifo | belady |" in summary


def test_all_experiments_write_an_aggregate(tmp_path: Path) -> None:
    done = sembench(
        *("simulate", "--all", "--seeds", 1, "--requests", 12, "--policies", "lru", "--no-plots"),
        *("--output-dir", tmp_path),
    )
    assert done.exit_code == 0, done.output
    lines = list(csv.DictReader((tmp_path / "aggregate_summary.csv").read_text().splitlines()))
    assert [line["experiment"] for line in lines] == list(shipped_experiments())
    text = (tmp_path / "aggregate_summary.md").read_text()
    assert "| experiment | lru | belady |" in text
    assert all(name in text for name in shipped_experiments())
    assert len([entry for entry in tmp_path.iterdir() if entry.is_dir()]) == len(shipped_experiments())


def test_two_runs_within_a_second_get_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "_timestamp", lambda: "20260101T000000Z")
    for _ in range(2):
        arguments = ("simulate", "--config", "multi_agent", "--seeds", 1, "--requests", 5, "--no-plots")
        assert sembench(*arguments, "--output-dir", tmp_path).exit_code == 0
    names = {entry.name for entry in tmp_path.iterdir()}
    assert names == {"20260101T000000Z_multi_agent", "20260101T000000Z_multi_agent-2"}


def test_the_same_experiment_gives_the_same_figures(tmp_path: Path) -> None:
    arguments = ("simulate", "--config", "code_assistant", "--seeds", 2, "--requests", 20, "--no-plots")
    for place in ("one", "two"):
        assert sembench(*arguments, "--output-dir", tmp_path / place).exit_code == 0
    first, second = (json.loads(next(tmp_path.glob(f"{place}/*/results.json")).read_text()) for place in ("one", "two"))
    for document in (first, second):
        for run in document["runs"]:
            del run["replay_s"]
    assert first["runs"] == second["runs"]
    assert first["policies"] == second["policies"]


def test_nothing_is_left_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    done = sembench(
        *("simulate", "--config", "multi_agent", "--seeds", 1, "--requests", 5, "--no-plots"), "--output-dir", tmp_path
    )
    assert done.exit_code == 2
    assert "No space left" in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--config NAME or --all"),
        (("--all", "--config", "multi_agent"), "one of them"),
        (("--config", "nothing"), "no experiment of that name"),
        (("--config", "multi_agent", "--policies", "magic"), "no policy is called 'magic'"),
        (("--config", "multi_agent", "--seeds", "0"), "--seeds"),
        (("--config", "multi_agent", "--seeds", "5000"), "seeds: "),
        (("--config", "multi_agent", "--cache-token-budget", "x"), "--cache-token-budget"),
    ],
)
def test_what_cannot_be_run_is_said_and_nothing_is_written(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = sembench("simulate", *arguments, "--output-dir", tmp_path / "out")
    assert done.exit_code == 2
    assert said in done.output
    assert not (tmp_path / "out").exists()


def test_the_self_check_names_every_experiment_and_policy() -> None:
    done = sembench("simulate", "--check")
    assert done.exit_code == 0, done.output
    assert all(f"experiment {name}:" in done.output for name in shipped_experiments())
    assert "policy lru: prefix, block and span cache" in done.output
    assert "HTTP: " in done.output


def test_the_experiments_are_listed() -> None:
    assert [line.split(":")[0] for line in sembench("simulate", "--list").output.splitlines()] == list(
        shipped_experiments()
    )


def test_more_room_never_costs_a_hit_of_the_optimum(tmp_path: Path) -> None:
    ratios = []
    for budget in (4_000, 16_000, 64_000):
        place = tmp_path / str(budget)
        arguments = ("simulate", "--config", "low_memory_rag_stress", "--seeds", 1, "--requests", 30, "--no-plots")
        assert sembench(*arguments, "--cache-token-budget", budget, "--output-dir", place).exit_code == 0
        result = read_json(next(place.glob("*/results.json")), LaboratoryResult)
        ratios.append(result.belady.byte_ratio.value)
    assert ratios == sorted(ratios)
    assert ratios[0] < ratios[2]
