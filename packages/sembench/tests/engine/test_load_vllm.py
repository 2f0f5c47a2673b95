"""run-load against a real vLLM server."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sembench.cli import main
from sembench.load import LoadPoint
from sembench.schema import DonorPrompt, ManifestItem, Result, read_json

OUTPUT_TOKENS = 8
REQUESTS = 5
WORDS = "the pump was stopped at noon after a valve had failed and nobody on site knew which part to order next"


def _id(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _item(number: int) -> ManifestItem:
    report = " ".join(random.Random(number).choices(WORDS.split(), k=200))
    return ManifestItem(
        item_id=_id(number),
        dataset="plant",
        source_id=str(number),
        transform="instruction_variant",
        donor_prompts=(DonorPrompt(donor_id=_id(number, 0), text=f"Sum up the report. {report}", label="donor"),),
        recipient_prompt=f"Name the part to order. {report}",
        input="Which part?",
        answers=(),
        negative_control=False,
    )


@pytest.fixture(scope="module")
def result(vllm_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("load")
    manifest, output = folder / "m.jsonl", folder / "r.json"
    manifest.write_text("".join(_item(number).model_dump_json() + "\n" for number in range(4)))
    words = f"run-load --manifest {manifest} --output {output} --gateway-url {vllm_server.base_url} --model"
    # Five requests: one recipient of four is drawn again.
    load = f"--concurrency 1 2 --rate 2 --duration 0.1 --warmup 0.1 --min-requests {REQUESTS} --reuse-share 0 1"
    load += f" --max-output-tokens {OUTPUT_TOKENS}"
    done = CliRunner().invoke(main, [*words.split(), vllm_server.model, *load.split()])
    assert done.exit_code == 0, done.output
    return read_json(output, Result)


@pytest.fixture(scope="module")
def points(result: Result) -> list[LoadPoint]:
    return [LoadPoint.model_validate(entry) for entry in result.load or ()]


def test_every_request_is_answered_at_every_load(points: list[LoadPoint]) -> None:
    assert [(p.mode, p.level, p.reuse_share) for p in points] == [
        (mode, level, share) for share in (0.0, 1.0) for mode, level in (("closed", 1), ("closed", 2), ("open", 2))
    ]
    for point in points:
        assert point.failed == 0, point.error_samples
        assert point.ok == point.requests >= REQUESTS
        assert point.stopped is None


def test_times_and_tokens_are_the_servers(points: list[LoadPoint]) -> None:
    for point in points:
        assert point.output_tokens_by == "usage"
        assert point.ttft_ms.n == point.ok
        # An answer may end early, but not go on.
        assert point.itl_ms.n <= (OUTPUT_TOKENS - 1) * point.ok
        assert 0 < (point.ttft_ms.p50 or 0) <= (point.latency_ms.p50 or 0)
        assert (point.prompt_tokens or 0) > 100 * point.ok
    closed = [point for point in points if point.mode == "closed"]
    assert [point.in_flight_max for point in closed] == [1, 2, 1, 2]


def test_no_request_is_answered_from_the_exact_prefix_cache(points: list[LoadPoint]) -> None:
    """Recipients are drawn again and again, and the server still finds none of them in its own cache."""
    drawn = [point for point in points if point.reuse_share == 1.0]
    assert all(point.reuse_requests > point.distinct_recipients for point in drawn)
    assert all(point.donors_served == 4 for point in drawn)
    assert [point.engine_cached_tokens or 0 for point in points] == [0] * len(points)


def test_the_result_tells_which_server_it_was(result: Result, vllm_server: Any) -> None:
    assert result.run.kind == "load"
    assert result.run.engine["model"] == vllm_server.model
    assert result.run.engine["version"].startswith("0.32.0")


def test_the_result_becomes_a_report(result: Result, tmp_path: Path) -> None:
    from sembench.report import write_report

    write_report([result], tmp_path / "load.html")
    assert "Open loop" in (tmp_path / "load.html").read_text()
