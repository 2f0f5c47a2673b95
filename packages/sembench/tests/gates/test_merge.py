"""merge-results: what can be paired is, and what cannot is refused with its reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result as Ended

from sembench.schema import Result, read_json

Run = Callable[..., Ended]


def merge(sembench: Run, bench: Any, cold: Result, warm: Result, *more: str | Path) -> Ended:
    files = (bench.save(cold, "cold.json"), bench.save(warm, "warm.json"))
    return sembench(
        *("merge-results", "--cold", files[0], "--warm", files[1], "--output", bench.folder / "merged.json", *more)
    )


def test_two_runs_become_the_result_that_one_paired_run_would_be(bench: Any, sembench: Run) -> None:
    ended = merge(sembench, bench, bench.result("cold"), bench.result("warm"))
    assert ended.exit_code == 0, ended.output
    merged, paired = read_json(bench.folder / "merged.json", Result), bench.result("cold", "warm")
    assert merged.run.kind == "merged"
    assert merged.aggregate == paired.aggregate
    assert merged.paired == paired.paired
    assert merged.by_transform == paired.by_transform
    assert set(merged.config["merged_from"]) == {"cold", "warm"}


def test_arms_that_are_not_asked_for_stay_behind(bench: Any, sembench: Run) -> None:
    """Two paired runs: the cold arm of one and the warm of the other; comparisons with another cold arm are dropped."""
    stock = bench.result("cold", "warm", warm={"confirmed_tokens": 0, "output": "old"})
    ours = bench.result("cold", "warm", warm={"output": "new", "quality": {"cold_rouge_l": 0.123, "kl_mean": 1.0}})
    assert merge(sembench, bench, stock, ours).exit_code == 0
    merged = read_json(bench.folder / "merged.json", Result)
    warm = [record for record in merged.requests if record.arm == "warm"]
    assert {record.output for record in warm} == {"new"}
    assert 0.123 not in {record.quality.cold_rouge_l for record in warm}
    assert {record.quality.kl_mean for record in warm} == {None}


@pytest.mark.parametrize(
    ("cold", "warm", "told"),
    [
        ({"arms": ("warm",)}, {"arms": ("cold",)}, "swapped"),
        ({"arms": ("warm",)}, {"arms": ("warm",)}, "--cold holds no record of the arm cold, only: warm"),
        ({"arms": ("cold",)}, {"arms": ()}, "--warm holds no record of the arm warm"),
        ({"cold": {"confirmed_tokens": 64}}, {}, "5 of 5 cold records have confirmed reuse"),
        ({"cold": {"engine_cached_tokens": 64}}, {}, "had tokens in the engine's cache"),
        ({"cold": {"proved_cold": False}}, {}, "were served warm"),
        ({"cold": {"proved_cold": None, "cold_proof": None}}, {}, "are not proved cold"),
        ({"config": {"model": "other"}}, {}, "the setting model differs: 'other' in --cold, 'm' in --warm"),
        ({"config": {"max_output_tokens": 8}}, {}, "the setting max_output_tokens differs"),
        ({"config": {"concurrency": 8}}, {}, "the setting concurrency differs"),
        ({"engine": {"version": "0.26.0"}}, {}, "the engine's version differs"),
        ({"cold": {"prompt_tokens": 500}}, {}, "500 tokens cold, 160 warm"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    cold: dict[str, Any], warm: dict[str, Any], told: str, bench: Any, sembench: Run
) -> None:
    def run(spec: dict[str, Any], arm: str) -> Result:
        result: Result = bench.result(*spec.get("arms", (arm,)), **({arm: spec[arm]} if arm in spec else {}))
        result.config.update(spec.get("config", {}))
        result.run.engine.update(spec.get("engine", {}))
        return result

    ended = merge(sembench, bench, run(cold, "cold"), run(warm, "warm"))
    assert ended.exit_code == 1
    assert told in ended.stderr
    assert not (bench.folder / "merged.json").exists()


def test_swapped_paired_runs_are_told_apart_by_the_backends_events(bench: Any, sembench: Run) -> None:
    stock = bench.result("cold", "warm", warm={"confirmed_tokens": 0})
    ours = bench.result("cold", "warm")
    assert merge(sembench, bench, stock, ours).exit_code == 0
    ended = merge(sembench, bench, ours, stock)
    assert ended.exit_code == 1
    assert "the files are swapped" in ended.stderr


def test_runs_of_different_manifests_are_refused(bench: Any, sembench: Run) -> None:
    other = bench.write_manifest("other.jsonl", suffix="\n")
    ended = merge(sembench, bench, bench.result("cold"), bench.result("warm", manifest=other))
    assert ended.exit_code == 1
    assert "manifests differ" in ended.stderr


def test_the_manifest_must_be_there_and_unchanged(bench: Any, sembench: Run) -> None:
    cold, warm = bench.result("cold"), bench.result("warm")
    kept = bench.folder / "kept.jsonl"
    bench.manifest.rename(kept)
    ended = merge(sembench, bench, cold, warm)
    assert (ended.exit_code, "--manifest" in ended.stderr) == (2, True)
    assert merge(sembench, bench, cold, warm, "--manifest", kept).exit_code == 0
    changed = bench.write_manifest("changed.jsonl", suffix="\n")
    ended = merge(sembench, bench, cold, warm, "--manifest", changed)
    assert (ended.exit_code, "is not the manifest of these runs" in ended.stderr) == (1, True)


def test_a_truncated_result_is_refused_with_2(bench: Any, sembench: Run) -> None:
    cold = bench.save(bench.result("cold"), "cold.json")
    cold.write_text(cold.read_text()[:-40])
    warm = bench.save(bench.result("warm"), "warm.json")
    ended = sembench("merge-results", "--cold", cold, "--warm", warm, "--output", bench.folder / "m.json")
    assert ended.exit_code == 2
    assert "cold.json: not JSON" in ended.stderr
