from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from click.testing import Result as Outcome

from sembench.cli import main
from sembench.identity import sha256_of
from sembench.load import LoadPoint
from sembench.schema import Result, read_json

QUICK = ("--first-token-s", 0.01, "--between-tokens-s", 0.001, "--tokens", 4)


def invoke(*words: object) -> Outcome:
    return CliRunner().invoke(main, ["run-load", *map(str, words)])


@pytest.fixture
def run(manifest: Path, tmp_path: Path) -> Callable[..., Outcome]:
    def start(url: str, words: str = "", model: str = "stub") -> Outcome:
        files = ("--manifest", manifest, "--output", tmp_path / "new" / "r.json")
        return invoke(*files, "--gateway-url", url, "--model", model, *words.split())

    return start


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "new" / "r.json"


def test_a_sweep_writes_one_point_for_each_load_and_share(
    run: Callable[..., Outcome], stub: Callable[..., Any], output: Path, manifest: Path
) -> None:
    server = stub(*QUICK)
    load = "--concurrency 1 3 --rate 20 --duration 0.1 --warmup 0.1 --min-requests 5"
    done = run(server.url, f"{load} --reuse-share 0 1 --seed 5")
    assert done.exit_code == 0, done.output
    result = read_json(output, Result)
    points = [LoadPoint.model_validate(entry) for entry in result.load or ()]
    assert [(p.mode, p.level, p.reuse_share) for p in points] == [
        ("closed", 1, 0.0),
        ("closed", 3, 0.0),
        ("open", 20, 0.0),
        ("closed", 1, 1.0),
        ("closed", 3, 1.0),
        ("open", 20, 1.0),
    ]
    assert all(p.ok == p.requests >= 5 for p in points)
    assert [p.donors_served for p in points] == [0, 0, 0, 5, 5, 5]
    assert [p.reuse_requests == p.requests for p in points] == [False] * 3 + [True] * 3
    assert result.run.kind == "load"
    assert result.run.seed == 5
    assert result.run.manifest_sha256 == sha256_of(manifest)
    assert result.run.finished_at is not None
    assert result.aggregate.requests_ok == sum(p.ok for p in points)
    assert "3 in flight" in done.output


def test_chat_is_used_where_it_is_asked_for(
    run: Callable[..., Outcome], stub: Callable[..., Any], output: Path
) -> None:
    done = run(stub(*QUICK).url, "--template chat --concurrency 1 --duration 0.1 --warmup 0 --reuse-share 0")
    assert done.exit_code == 0, done.output
    assert read_json(output, Result).config["template"] == "chat"


def test_an_api_key_is_written_nowhere(
    run: Callable[..., Outcome], stub: Callable[..., Any], output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMBENCH_API_KEY", "very-secret")
    done = run(stub(*QUICK).url, "--concurrency 1 --duration 0.1 --warmup 0 --reuse-share 0")
    assert done.exit_code == 0, done.output
    assert "very-secret" not in output.read_text() + done.output


def test_an_unreachable_server_is_refused(run: Callable[..., Outcome], output: Path) -> None:
    done = run("http://127.0.0.1:1")
    assert done.exit_code == 3
    assert "http://127.0.0.1:1: reachable" in done.output
    assert not output.exists()


def test_a_model_that_is_not_served_is_refused_with_those_that_are(
    run: Callable[..., Outcome], stub: Callable[..., Any]
) -> None:
    done = run(stub(*QUICK).url, model="nope")
    assert done.exit_code == 3
    assert "--model nope is not served; served: stub" in done.output


def test_a_server_that_dies_in_the_middle_is_told_and_what_was_measured_stays(
    run: Callable[..., Outcome], stub: Callable[..., Any], output: Path
) -> None:
    server = stub(*QUICK, "--die-after", 12)
    done = run(server.url, "--concurrency 1 2 --duration 0.001 --warmup 0 --reuse-share 0 --min-requests 8")
    assert done.exit_code == 3, done.output
    assert "no longer accepts connections" in done.output
    assert str(output) in done.output
    assert "Traceback" not in done.output
    result = read_json(output, Result)
    points = [LoadPoint.model_validate(entry) for entry in result.load or ()]
    assert [bool(point.stopped) for point in points] == [False, True]
    assert points[0].ok == 8
    assert points[-1].errors.keys() <= {"connect", "disconnected", "unfinished"}
    assert result.run.finished_at is None


def test_a_server_that_only_fails_is_said_to(run: Callable[..., Outcome], stub: Callable[..., Any]) -> None:
    done = run(stub("--fail-status", 503).url, "--duration 2")
    assert done.exit_code == 3
    assert "HTTP 503: " in done.output


def test_donors_that_are_not_served_end_the_run(run: Callable[..., Outcome], stub: Callable[..., Any]) -> None:
    # The preflight is answered, the donors are not.
    done = run(stub(*QUICK, "--die-after", 1).url, "--concurrency 1 --duration 2 --reuse-share 1")
    assert done.exit_code == 3
    assert "of 5 donors were not served" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--duration 0", "--duration"),
        ("--duration -3", "--duration"),
        ("--warmup -1", "--warmup"),
        ("--min-requests -1", "--min-requests"),
        ("--concurrency 0", "--concurrency"),
        ("--concurrency 1 x", "--concurrency"),
        ("--rate 0", "--rate"),
        ("--reuse-share 1.5", "--reuse-share"),
        ("--timeout-s 0", "--timeout-s"),
        ("--max-in-flight 0", "--max-in-flight"),
    ],
)
def test_wrong_options_are_refused_by_name(run: Callable[..., Outcome], words: str, said: str) -> None:
    done = run("http://127.0.0.1:1", words)
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://"])
def test_a_wrong_url_is_refused_by_name(run: Callable[..., Outcome], url: str) -> None:
    done = run(url)
    assert done.exit_code == 2
    assert "--gateway-url" in done.output


def test_a_manifest_that_is_not_there_or_is_torn_is_refused(tmp_path: Path, manifest: Path) -> None:
    rest = ("--output", tmp_path / "r.json", "--gateway-url", "http://127.0.0.1:1", "--model", "stub")
    assert invoke("--manifest", tmp_path / "no.jsonl", *rest).exit_code == 2
    manifest.write_text(manifest.read_text()[:-40])
    done = invoke("--manifest", manifest, *rest)
    assert done.exit_code == 2
    assert f"{manifest}:6" in done.output


def test_an_output_that_cannot_be_written_is_refused_before_the_load(
    manifest: Path, tmp_path: Path, stub: Callable[..., Any]
) -> None:
    (tmp_path / "file").write_text("")
    server = stub(*QUICK)
    files = ("--manifest", manifest, "--output", tmp_path / "file" / "r.json")
    done = invoke(*files, "--gateway-url", server.url, "--model", "stub", "--duration", 1)
    assert done.exit_code == 2
    assert "--output" in done.output
    assert server.stop()["requests"] == 2  # the preflight's


def test_a_load_result_is_valid_json_for_other_readers(
    run: Callable[..., Outcome], stub: Callable[..., Any], output: Path
) -> None:
    run(stub(*QUICK, "--no-usage").url, "--concurrency 1 --duration 0.1 --warmup 0 --reuse-share 0")
    point = json.loads(output.read_text())["load"][0]
    assert point["output_tokens_by"] == "events"
    assert point["prompt_tokens"] is None
    assert point["engine_cached_tokens"] is None
