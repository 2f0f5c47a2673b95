"""Errors in logs, the command itself, and kubectl."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from sembench.engine_events import summarize
from sembench.schema import EngineSummary, read_json

Log = Callable[..., Path]
Run = Callable[..., Result]
LANDED = "INFO SemBlend materialized request_id=r1 donor_id=d1 tokens=880"


def test_a_traceback_is_one_error_however_it_is_written(log: Log) -> None:
    plain = (
        "ERROR 06-22 18:00:00 SemBlend donor registration failed",
        "Traceback (most recent call last):",
        '  File "/x/kv_connector.py", line 5, in save',
        "    raise ValueError(1)",
        "ValueError: 1",
        "INFO 06-22 18:00:00 served",
    )
    prefixed = (
        "(EngineCore pid=7) ERROR 06-22 18:00:00 [core.py:1] EngineCore failed",
        "(EngineCore pid=7) ERROR 06-22 18:00:00 [core.py:1] Traceback (most recent call last):",
        '(EngineCore pid=7) ERROR 06-22 18:00:00 [core.py:1]   File "/x/kv_cache.py", line 5, in save',
        "(EngineCore pid=7) ERROR 06-22 18:00:00 [core.py:1]     raise KVError",
        "(APIServer pid=6) INFO 06-22 18:00:00 between the lines of another process",
        "(EngineCore pid=7) ERROR 06-22 18:00:00 [core.py:1] RuntimeError: no KV left",
        "(EngineCore pid=7) INFO 06-22 18:00:01 on it goes",
    )
    for lines, told in ((plain, "ValueError: 1"), (prefixed, "RuntimeError: no KV left")):
        summary = summarize("vllm", [log(*lines)])
        assert summary.errors == 1
        assert summary.error_samples[0].endswith(told)


def test_chained_exceptions_are_one_error(log: Log) -> None:
    summary = summarize(
        "vllm",
        [
            log(
                "Traceback (most recent call last):",
                '  File "a.py", line 1, in f',
                "KeyError: 'x'",
                "",
                "During handling of the above exception, another exception occurred:",
                "",
                "Traceback (most recent call last):",
                '  File "a.py", line 2, in g',
                "RuntimeError: y",
            )
        ],
    )
    assert (summary.errors, summary.error_samples) == (1, ["RuntimeError: y"])


def test_an_error_line_counts_where_it_names_us_a_connector_or_kv(log: Log) -> None:
    summary = summarize(
        "sglang",
        [
            log(
                "[2026-06-22 18:00:00] ERROR: SemBlend lookup failed",
                "[2026-06-22 18:00:00] ERROR: KVCache pool leak",
                "[2026-06-22 18:00:00] ERROR: bad request: invalid JSON",
                "[2026-06-22 18:00:00] INFO: kv cache is fine, 0 errors",
            )
        ],
    )
    assert summary.errors == 2


def test_the_command_writes_the_summary_and_prints_it(log: Log, sembench: Run, tmp_path: Path) -> None:
    output = tmp_path / "new" / "summary.json"
    first, second = log(LANDED), log(LANDED.replace("r1", "r2"), name="second.log")
    result = sembench("summarize-engine-events", "--engine", "vllm", "--input", first, second, "--output", output)
    assert result.exit_code == 0, result.output
    assert "materialized tokens              1760" in result.stdout
    assert read_json(output, EngineSummary).materialized_tokens == 1760


@pytest.mark.parametrize("alias", ["trt-llm", "TensorRT-LLM", "trtllm"])
def test_names_of_tensorrt_llm_are_the_same_engine(alias: str, log: Log, sembench: Run, tmp_path: Path) -> None:
    output = tmp_path / "s.json"
    event = json.dumps({"event": "lookup", "found": True})
    result = sembench("summarize-engine-events", "--engine", alias, "--input", log(event), "--output", output)
    assert result.exit_code == 0, result.output
    assert read_json(output, EngineSummary).engine == "trtllm"


def test_wrong_input_ends_with_2_and_no_traceback(sembench: Run, tmp_path: Path) -> None:
    for arguments, told in (
        (("--engine", "vllm", "--input", tmp_path / "missing.log"), "no such file"),
        (("--engine", "vllm", "--input", tmp_path), "is a directory"),
        (("--engine", "ollama", "--input", tmp_path / "missing.log"), "'ollama' is none of vllm"),
    ):
        result = sembench("summarize-engine-events", *arguments, "--output", tmp_path / "s.json")
        assert result.exit_code == 2
        assert told in result.stderr
        assert not (tmp_path / "s.json").exists()


def test_kubectl_logs_are_kept_and_counted(sembench: Run, kubectl: Callable[[str], Path], tmp_path: Path) -> None:
    arguments = kubectl(f'echo "2026-06-22T18:00:01.5Z {LANDED}"')
    log, summary = tmp_path / "out" / "pod.log", tmp_path / "out" / "pod.json"
    result = sembench(
        *("collect-k8s-engine-events", "--engine", "vllm", "--namespace", "inference", "--pod", "vllm-0"),
        *("--container", "server", "--since-time", "2026-06-22T18:00:00Z"),
        *("--output-log", log, "--output-summary", summary),
    )
    assert result.exit_code == 0, result.output
    assert read_json(summary, EngineSummary).materialized_tokens == 880
    assert log.read_text().endswith("tokens=880\n")
    said = arguments.read_text().split()
    assert said[:2] == ["logs", "vllm-0"]
    assert {"--namespace=inference", "--container=server", "--since-time=2026-06-22T18:00:00Z"} <= set(said)


REFUSALS = (
    ('echo "Error from server (NotFound): pods \\"vllm-0\\" not found" >&2; exit 1', "check --pod"),
    ('echo "Error from server (Forbidden): pods is forbidden" >&2; exit 1', "pods/log"),
    ('echo "error: You must be logged in to the server (Unauthorized)" >&2; exit 1', "not logged in"),
    ('echo "The connection to the server localhost:8080 was refused" >&2; exit 1', "cannot be reached"),
    ('echo "error: a container name must be specified for pod x" >&2; exit 1', "--container"),
    ("echo partial; exit 7", "ended with 7"),
    ("exec sleep 20", "--since-time or raise --timeout"),
)


@pytest.mark.parametrize(("body", "told"), REFUSALS)
def test_refusals_of_kubectl_end_with_3_and_say_what_to_do(
    body: str, told: str, sembench: Run, kubectl: Callable[[str], Path], tmp_path: Path
) -> None:
    kubectl(body)
    result = sembench(
        *("collect-k8s-engine-events", "--engine", "vllm", "--namespace", "n", "--pod", "vllm-0", "--timeout", "2"),
        *("--output-log", tmp_path / "pod.log", "--output-summary", tmp_path / "pod.json"),
    )
    assert result.exit_code == 3
    assert told in result.stderr
    assert not list(tmp_path.glob("*pod*")), "nothing half-written is left"


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1"])
def test_a_time_limit_that_is_none_is_refused_by_its_option(
    seconds: str, sembench: Run, kubectl: Callable[[str], Path], tmp_path: Path
) -> None:
    arguments = kubectl("echo hi")
    asked = ("--engine", "vllm", "--namespace", "n", "--pod", "p", "--timeout", seconds)
    files = ("--output-log", tmp_path / "pod.log", "--output-summary", tmp_path / "pod.json")
    result = sembench("collect-k8s-engine-events", *asked, *files)
    assert result.exit_code == 2
    assert "--timeout" in result.stderr
    assert "0<x<=86400" in result.stderr or "no finite number" in result.stderr
    assert not arguments.exists(), "kubectl is not asked"


def test_without_kubectl_the_command_says_so(sembench: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = sembench(
        *("collect-k8s-engine-events", "--engine", "vllm", "--namespace", "n", "--pod", "p"),
        *("--output-log", tmp_path / "a.log", "--output-summary", tmp_path / "a.json"),
    )
    assert result.exit_code == 3
    assert "kubectl is not on PATH" in result.stderr


@pytest.mark.parametrize("time", ["yesterday", "2026-06-22T18:00:00", "2026-06-22"])
def test_a_time_without_a_zone_is_wrong_usage(time: str, sembench: Run, tmp_path: Path) -> None:
    result = sembench(
        *("collect-k8s-engine-events", "--engine", "vllm", "--namespace", "n", "--pod", "p", "--since-time", time),
        *("--output-log", tmp_path / "a.log", "--output-summary", tmp_path / "a.json"),
    )
    assert result.exit_code == 2
    assert "--since-time" in result.stderr


def test_a_traceback_in_a_pods_log_is_one_error_as_in_the_plain_log(log: Callable[..., Path], tmp_path: Path) -> None:
    """Kubernetes puts the time in front of each of its lines."""
    lines = [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        '  File "b.py", line 2, in g',
        "RuntimeError: no store",
        "INFO goes on",
    ]
    plain = summarize("sglang", [log(*lines)])
    stamped = tmp_path / "pod.log"
    stamped.write_text("".join(f"2026-06-22T18:00:01.123456789Z {line}\n" for line in lines))
    assert (plain.errors, plain.error_samples) == (1, ["RuntimeError: no store"])
    pods = summarize("sglang", [stamped])
    assert (pods.errors, pods.error_samples) == (plain.errors, plain.error_samples)


def test_what_kubectl_says_beside_a_log_is_shown(sembench: Run, kubectl: Callable[[str], Path], tmp_path: Path) -> None:
    """Of a deployment it takes one pod: the others' reuse and errors are not in that log."""
    kubectl(f'echo "Found 2 pods, using pod/vllm-7" >&2; echo "{LANDED}"')
    result = sembench(
        *("collect-k8s-engine-events", "--engine", "vllm", "--namespace", "n", "--pod", "deploy/vllm"),
        *("--output-log", tmp_path / "pod.log", "--output-summary", tmp_path / "pod.json"),
    )
    assert result.exit_code == 0
    assert "Found 2 pods, using pod/vllm-7" in result.stderr
