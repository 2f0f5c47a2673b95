"""SemBench's replay against vLLM with SemBlend: its own gates decide, and its negative controls stay cold."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semblend_core.testing import shallow_model_folder
from semblend_core.testing.published import LiveServer, PublishedSequence

BLOCK = 32
REUSABLE = ("instruction_variant", "rag_reorder", "multi_donor_composite", "sparse_edit")


def sembench(command: str, *options: object) -> str:
    words = [sys.executable, "-m", "sembench", command, *map(str, options)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def server(new_server: Callable[..., Any]) -> Iterator[Any]:
    # As in a container: records between the lines of the log.
    with new_server({"SEMBLEND_AUDIT_PATH": "/dev/stdout", "SEMBLEND_SHARING": "salted"}) as started:
        yield replace(started, audit=started.log)


@pytest.fixture(scope="module")
def replay(server: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay")
    manifest, result = folder / "manifest.jsonl", folder / "result.json"
    sembench(
        "build",
        *("--profile", "synthetic-v1", "--length-bands", "1k", "--datasets", "contract_review"),
        *("--transforms", *REUSABLE, "negative_control", "--output", manifest),
    )
    sembench(
        "run-live-gateway",
        *("--manifest", manifest, "--output", result, "--gateway-url", server.url, "--model", server.model),
        *("--paired", "--probe", "--post-donor-delay-ms", 3000, "--block-size", BLOCK, "--max-output-tokens", 16),
        *("--connector-audit", server.audit),
    )
    return result


@pytest.fixture(scope="module")
def result(replay: Path) -> Any:
    return json.loads(replay.read_text())


def test_the_gates_pass(server: Any, replay: Path, tmp_path: Path) -> None:
    events = tmp_path / "events.json"
    sembench("summarize-engine-events", "--engine", "semblend", "--input", server.audit, "--output", events)
    print(
        sembench(
            "assert-result-gates",
            *("--result", replay, "--engine-summary", events),
            *("--min-backend-confirmed-block-rate", 0.4),
            *("--min-materialization-events", len(REUSABLE), "--min-materialized-tokens", 2048),
            *("--max-negative-control-confirmed-rate", 0.0),
            *("--require-materialized-reuse", "--require-no-engine-errors"),
        )
    )


def test_every_pair_is_proved_cold(result: Any) -> None:
    assert result["paired"]["clean_pairs"] == len(REUSABLE) + 1
    assert not result["paired"]["dropped"]


def test_reuse_is_confirmed_for_every_item_but_the_control(result: Any) -> None:
    warm = {record["transform"]: record for record in result["requests"] if record["arm"] == "warm"}
    assert all(warm[transform]["confirmed_tokens"] > 512 for transform in REUSABLE)
    assert warm["negative_control"]["confirmed_tokens"] == 0
    assert warm["negative_control"]["engine_cached_tokens"] == 0


def test_nothing_approximate_stays_behind(result: Any) -> None:
    contaminated = result["aggregate"]["propagation_contamination_rate"]
    assert (contaminated["numerator"], contaminated["denominator"]) == (0, len(REUSABLE))


@pytest.fixture(scope="module")
def served(server: Any) -> LiveServer:
    # The same server by another name stands for the worker behind the gateway.
    worker = server.url.replace("127.0.0.1", "localhost")
    return LiveServer(
        engine="vllm",
        url=server.url,
        model=server.model,
        tokenizer=str(shallow_model_folder()),
        log=server.log,
        replay=f"run-live-gateway --gateway-url {server.url} --donor-url {worker}",
        store_ms=2000,
    )


class TestPublishedSequence(PublishedSequence):
    pass
