"""The commands that users have in their scripts, as the contract spells them. Only places are replaced."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

DATASETS = "qasper multifieldqa_en hotpotqa 2wikimqa musique gov_report qmsum multi_news lcc repobench-p"
BUILD = (
    f"build --profile longbench-v1 --datasets {DATASETS} --max-items-per-dataset 10 --transforms instruction_variant "
    "same_evidence_new_task rag_reorder multi_donor_composite fuzzy_edit leading_evidence_new_task negative_control "
    "--max-segments 4 --min-segment-chars 400 --output M.jsonl"
)
GATES = (
    "assert-result-gates --result R.json --engine-summary results/sglang-engine-events.json "
    "--min-quality-pass-rate 0.80 --min-backend-confirmed-block-rate 0.05 --min-materialization-events 1 "
    "--min-materialized-tokens 512 "
    "--max-negative-control-confirmed-rate 0.0 --require-materialized-reuse --require-no-engine-errors"
)
COLLECT = (
    "collect-k8s-engine-events --engine sglang --namespace inference --pod sglang-0 --since-time 2026-06-22T18:00:00Z "
    "--output-log results/sglang.log --output-summary results/sglang-engine-events.json"
)
LIVE = "--model Qwen/Qwen2.5-7B-Instruct --max-items 20"
SGLANG_LOG = "[FUZZY] Realized 640 fuzzy tokens\n"


def sembench(arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        [sys.executable, "-m", "sembench", *shlex.split(arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with LongBench's files, a tokenizer, engines' logs and a kubectl."""
    place = tmp_path_factory.mktemp("scripts")
    for number, dataset in enumerate(DATASETS.split()):
        write_longbench(place / "longbench" / f"{dataset}.jsonl", dataset, number)
    (place / "results").mkdir()
    audit = {"event": "materialized", "request_id": "r", "tokens": 640}
    (place / "results/trtllm-audit.jsonl").write_text(json.dumps(audit) + "\n")
    (place / "results/vllm-backend.log").write_text("INFO SemBlend materialized request_id=r tokens=640\n")
    kubectl = place / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(f"#!/bin/sh\nprintf '%s' '{SGLANG_LOG}'\n")
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    return place


def write_longbench(path: Path, dataset: str, number: int) -> None:
    path.parent.mkdir(exist_ok=True)
    lines = []
    for row in range(2):
        sentences = [
            f"In {dataset} part {part} of report {number * 7 + row} the team at site {part * 31 + row + number * 53} "
            f"measured {part * 97 + number * 11 + row} units of cargo {dataset[:4]}{part}{row} at gate {part * row}."
            for part in range(60)
        ]
        context = "\n\n".join(" ".join(sentences[at : at + 10]) for at in range(0, 60, 10))
        lines.append(
            json.dumps(
                {
                    "input": f"What did the team measure in part {row + 3}?",
                    "context": context,
                    "answers": [sentences[row + 3]],
                    "length": len(context.split()),
                    "dataset": dataset,
                    "language": "en",
                    "all_classes": None,
                    "_id": f"{dataset}-{row}",
                }
            )
        )
    path.write_text("\n".join(lines) + "\n")


def test_the_fixture_is_built_and_measured_offline(folder: Path) -> None:
    assert sembench("build --profile fixture --output manifests/fixture.jsonl", folder).returncode == 0
    done = sembench(
        "run-offline --manifest manifests/fixture.jsonl --output results/fixture-offline.json --block-size 16", folder
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "results/fixture-offline.json").read_text())["aggregate"]["items"] == 14


def test_ten_longbench_datasets_are_built_and_measured_offline(folder: Path) -> None:
    built = sembench(f"{BUILD} --source longbench", folder)
    assert built.returncode == 0, built.stderr
    done = sembench("run-offline --manifest M.jsonl --output R.json --block-size 16 --tokenizer smollm2", folder)
    assert done.returncode == 0, done.stderr
    named = {json.loads(line)["dataset"] for line in (folder / "M.jsonl").read_text().splitlines()}
    assert named >= set(DATASETS.split())


@pytest.mark.parametrize(
    "command",
    [
        f"run-live-sglang --manifest manifests/fixture.jsonl --output L.json --base-url http://127.0.0.1:9 {LIVE}",
        "run-live-gateway --manifest manifests/fixture.jsonl --output L.json --gateway-url http://127.0.0.1:9 "
        f"--donor-url http://127.0.0.1:9 {LIVE}",
    ],
)
def test_live_commands_say_that_nobody_answers(folder: Path, command: str) -> None:
    sembench("build --profile fixture --output manifests/fixture.jsonl", folder)
    done = sembench(command, folder)
    assert done.returncode == 3, done.stderr
    assert "preflight refused" in done.stderr


@pytest.mark.parametrize(("engine", "log"), [("vllm", "vllm-backend.log"), ("trtllm", "trtllm-audit.jsonl")])
def test_engine_logs_are_counted(folder: Path, engine: str, log: str) -> None:
    done = sembench(
        f"summarize-engine-events --engine {engine} --input results/{log} --output results/{engine}-engine-events.json",
        folder,
    )
    assert done.returncode == 0, done.stderr
    counted = json.loads((folder / f"results/{engine}-engine-events.json").read_text())
    assert counted["materialized_tokens"] == 640


def test_a_pods_log_is_fetched_and_the_gates_are_held_against_it(folder: Path) -> None:
    collected = sembench(COLLECT, folder)
    assert collected.returncode == 0, collected.stderr
    assert json.loads((folder / "results/sglang-engine-events.json").read_text())["materialized_tokens"] == 640
    sembench("build --profile fixture --output manifests/fixture.jsonl", folder)
    sembench("run-offline --manifest manifests/fixture.jsonl --output R.json", folder)
    judged = sembench(GATES, folder)
    # An offline result has no answers and no backend: gates that need them refuse. So do those on the log's tokens,
    # which nothing ties to this result.
    assert judged.returncode == 1
    assert "--min-quality-pass-rate: FAIL" in judged.stderr
    assert "--min-materialized-tokens" in judged.stdout
