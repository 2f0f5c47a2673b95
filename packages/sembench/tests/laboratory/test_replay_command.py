from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sembench.cli import main
from sembench.laboratory.results import LaboratoryResult
from sembench.laboratory.traces import iterate_trace
from sembench.load.stub import Behaviour, StubServer
from sembench.schema import read_json

FIGURES = {
    "replay_policy_avg_ttft.png",
    "replay_tokens_saved.png",
    "replay_hit_rate.png",
    "observed_vs_simulated_ttft.png",
}


def sembench(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collected")
    done = sembench("collect-trace", "--mock", "--requests", 40, "--output-name", "mock_trace", "--output-dir", folder)
    assert done.exit_code == 0, done.output
    (path,) = folder.iterdir()
    assert path.name.endswith("Z_mock_trace.jsonl")
    return path


def test_a_mock_trace_has_types_sizes_and_times_but_no_text(trace: Path) -> None:
    requests = list(iterate_trace(trace))
    assert len(requests) == 40
    assert {block.semantic_type for request in requests for block in request.blocks} == {
        "system",
        "template",
        "retrieved_context",
        "user",
    }
    assert all(block.text is None for request in requests for block in request.blocks)
    assert all(request.observed_ttft_ms and request.observed_prefill_tokens for request in requests)


def test_text_is_kept_where_it_is_asked_for(tmp_path: Path) -> None:
    arguments = ("collect-trace", "--mock", "--requests", 2, "--workload", "tool_agent_session_reuse", "--keep-text")
    assert sembench(*arguments, "--output-dir", tmp_path).exit_code == 0
    request = next(iterate_trace(next(tmp_path.iterdir())))
    assert all(block.text for block in request.blocks)
    assert request.session_id == "session-1"


def test_a_replay_writes_its_folder(trace: Path, tmp_path: Path) -> None:
    done = sembench(
        *("replay-trace", "--trace", trace, "--cache-token-budget", 10_000, "--policies", "lru", "lfu"),
        *("--output-dir", tmp_path, "--output-name", "mine"),
    )
    assert done.exit_code == 0, done.output
    (folder,) = tmp_path.iterdir()
    assert folder.name.endswith("Z_mine")
    tables = {"replay_results.json", "replay_metrics.csv", "replay_summary.md"}
    assert {file.name for file in folder.iterdir()} == tables | FIGURES
    result = read_json(folder / "replay_results.json", LaboratoryResult)
    assert result.trace is not None
    assert result.trace["requests"] == 40
    assert result.observed is not None
    assert set(result.observed[0].simulated_ttft_ms) == {"lru", "lfu"}


@pytest.mark.parametrize(
    ("hashes", "said"),
    [
        (["a", "b", "c", "d"], "All policies have the same mean TTFT, and nobody a shorter one"),
        (["a", "b", "a", "c", "a"], "lru, adaptive_semantic have the same mean TTFT, and nobody a shorter one"),
    ],
)
def test_nobody_is_named_best_who_is_not_alone(tmp_path: Path, hashes: list[str], said: str) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [
        {"request_id": str(at), "timestamp_ms": at, "blocks": [{"content_hash": each, "token_count": 10}]}
        for at, each in enumerate(hashes)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    policies = ("--policies", "fifo", "lru", "adaptive_semantic", "--no-plots", "--output-dir", tmp_path / "out")
    done = sembench("replay-trace", "--trace", path, "--cache-token-budget", 20, *policies)
    assert done.exit_code == 0, done.output
    assert said in " ".join(done.output.split())


def test_calibration_finds_the_mock_s_latency(trace: Path, tmp_path: Path) -> None:
    arguments = ("replay-trace", "--trace", trace, "--cache-token-budget", 20_000, "--policies", "lru", "--no-plots")
    assert sembench(*arguments, "--calibrate-from-trace", "--output-dir", tmp_path).exit_code == 0
    latency = read_json(next(tmp_path.glob("*/replay_results.json")), LaboratoryResult).latency
    assert latency["base_ms"] == pytest.approx(80, rel=0.5)
    assert latency["token_ms"] == pytest.approx(0.08, rel=0.15)


def test_a_share_of_the_trace_is_a_budget(trace: Path, tmp_path: Path) -> None:
    arguments = ("replay-trace", "--trace", trace, "--cache-share", 0.25, "--policies", "lru", "--no-plots")
    assert sembench(*arguments, "--output-dir", tmp_path).exit_code == 0
    result = read_json(next(tmp_path.glob("*/replay_results.json")), LaboratoryResult)
    assert result.trace is not None
    assert result.budget_tokens == result.trace["different_tokens"] // 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--cache-token-budget or --cache-share"),
        (("--cache-token-budget", 5, "--cache-share", 0.5), "one of them"),
        (("--cache-token-budget", 0), "--cache-token-budget"),
        (("--cache-share", 1.5), "--cache-share"),
        (("--cache-token-budget", 5, "--format", "xml"), "is none of auto, jsonl"),
        (("--cache-token-budget", 5, "--policies", "magic"), "no policy is called 'magic'"),
        (("--cache-token-budget", 5, "--output-name", "../up"), "--output-name"),
        (("--cache-token-budget", 5, "--calibrate-from-trace", "--base-ttft-ms", 5), "latency model"),
    ],
)
def test_what_cannot_be_replayed_is_said(trace: Path, tmp_path: Path, arguments: tuple[object, ...], said: str) -> None:
    done = sembench("replay-trace", "--trace", trace, *arguments, "--output-dir", tmp_path / "out")
    assert done.exit_code == 2
    assert said in done.output
    assert not (tmp_path / "out").exists()


@pytest.fixture
def server() -> Iterator[str]:
    """A real HTTP server on this machine whose times are known."""
    stub, loop, ready = StubServer(Behaviour(0.02, 0.001, 4)), asyncio.new_event_loop(), threading.Event()
    address: list[str] = []

    async def listen() -> None:
        listening = await stub.listen()
        address.append(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        ready.set()

    thread = threading.Thread(target=lambda: (loop.run_until_complete(listen()), loop.run_forever()), daemon=True)
    thread.start()
    ready.wait(30)
    yield address[0]
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)


def test_a_live_server_is_wrapped(server: str, tmp_path: Path) -> None:
    bodies = [
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "CONTEXT: a b\n\nUSER: c"},
            ]
        },
        {"prompt": "SYSTEM: short\n\nUSER: what?", "session_id": "s1"},
    ]
    source = tmp_path / "requests.jsonl"
    source.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    done = sembench(
        *("collect-trace", "--gateway-url", server, "--model", "stub", "--input", source),
        *("--output-dir", tmp_path / "out"),
    )
    assert done.exit_code == 0, done.output
    first, second = iterate_trace(next((tmp_path / "out").iterdir()))
    assert [block.semantic_type for block in first.blocks] == ["system", "retrieved_context", "user"]
    assert first.observed_ttft_ms is not None
    assert first.observed_ttft_ms >= 20
    assert (second.session_id, second.model_name) == ("s1", "stub")


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        ((), "--mock or --gateway-url", 2),
        (("--gateway-url", "http://127.0.0.1:9"), "needs --model", 2),
        (("--gateway-url", "http://127.0.0.1:9", "--model", "m"), "request 1: ", 3),
        (("--gateway-url", "nowhere", "--model", "m"), "--gateway-url", 2),
        (("--mock", "--workload", "none"), "--workload", 2),
        (("--mock", "--output-name", "a/b"), "--output-name", 2),
    ],
)
def test_what_cannot_be_collected_is_said(tmp_path: Path, arguments: tuple[str, ...], said: str, code: int) -> None:
    done = sembench("collect-trace", *arguments, "--requests", 2, "--output-dir", tmp_path / "out")
    assert done.exit_code == code
    assert said in done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("line", ["{}", '{"messages": []}', '{"messages": [{"role": "user"}]}', '{"prompt": ""}', "5"])
def test_requests_that_hold_nothing_are_refused(tmp_path: Path, line: str) -> None:
    source = tmp_path / "requests.jsonl"
    source.write_text(line + "\n")
    done = sembench("collect-trace", "--mock", "--input", source, "--output-dir", tmp_path / "out")
    assert done.exit_code == 2, done.output
    assert not (tmp_path / "out").exists()
