"""The telemetry proxy: what it passes on, what it measures, and what it never writes."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from semblend_core.testing import wait_until
from semblend_dynamo.gateway.secret_file import ConfigurationError
from semblend_dynamo.proxy.application import create_app
from semblend_dynamo.proxy.settings import ProxySettings
from semblend_dynamo.stub_replica import Behaviour, Seen, create_stub

MESSAGES = [
    {"role": "system", "content": "You are a concise assistant."},
    {"role": "user", "content": "CONTEXT: the confidential harbour plan\n\nUSER: summarize it"},
]
HEADERS = {"x-session-id": "demo-session", "x-tenant-id": "demo-tenant", "authorization": "Bearer secret-key"}


@pytest.fixture
def proxy(serve: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    clients = []

    def start(**settings: Any) -> Any:
        stub = serve(create_stub(Behaviour(), Seen()))
        given = {"upstream": stub.url, "trace_dir": str(tmp_path / "traces"), **settings}
        served = serve(create_app(ProxySettings(**given)))
        client = httpx.Client(base_url=served.url, timeout=60, trust_env=False)
        clients.append(client)
        served.stub, served.client = stub, client
        return served

    yield start
    for client in clients:
        client.close()


def ask(served: Any, **body: Any) -> httpx.Response:
    asked = {"model": "stub", "messages": MESSAGES, **body}
    answer: httpx.Response = served.client.post("/v1/chat/completions", json=asked, headers=HEADERS)
    return answer


def lines(served: Any, count: int) -> list[dict[str, Any]]:
    traces = served.app.state.traces
    wait_until(lambda: traces.written + traces.dropped >= count, "the trace is written", every_s=0.01)
    return [json.loads(line) for line in traces.path.read_text().splitlines()]


@pytest.mark.parametrize("stream", [False, True])
def test_requests_are_passed_on_and_traced(proxy: Any, stream: bool) -> None:
    served = proxy()
    answer = ask(served, stream=stream, stream_options={"include_usage": True})
    assert answer.status_code == 200
    assert (answer.text.endswith("data: [DONE]\n\n")) is stream
    ask(served, stream=stream, stream_options={"include_usage": True})
    first, second = lines(served, 2)
    assert first["model_name"] == "stub"
    assert [block["semantic_type"] for block in first["blocks"]] == ["system", "retrieved_context", "user"]
    assert [block["position"] for block in first["blocks"]] == [0, 1, 2]
    assert all(block["token_count"] > 0 for block in first["blocks"])
    assert 0 < first["observed_ttft_ms"] <= first["observed_total_latency_ms"]
    assert (first["observed_prefix_hit_tokens"], first["observed_prefill_tokens"]) == (0, 13)
    assert (second["observed_prefix_hit_tokens"], second["observed_prefill_tokens"]) == (13, 0)
    assert second["timestamp_ms"] >= first["timestamp_ms"]
    assert [b["content_hash"] for b in first["blocks"]] == [b["content_hash"] for b in second["blocks"]]


def test_what_is_not_known_is_null(proxy: Any) -> None:
    served = proxy()
    ask(served, stream=True)
    (line,) = lines(served, 1)
    assert line["observed_prefix_hit_tokens"] is None
    assert line["observed_prefill_tokens"] is None


def test_redacted_traces_hold_no_text_no_names_and_no_key(proxy: Any) -> None:
    served = proxy()
    ask(served)
    lines(served, 1)
    written = served.app.state.traces.path.read_text()
    for secret in ("confidential", "concise", "demo-session", "demo-tenant", "secret-key"):
        assert secret not in written
    assert stat.S_IMODE(served.app.state.traces.path.stat().st_mode) == 0o600
    assert served.stub.app.state.seen.headers[0]["authorization"] == "Bearer secret-key"


def test_text_is_kept_where_the_operator_says_so_and_keys_never(proxy: Any) -> None:
    served = proxy(redact=False)
    ask(served)
    (line,) = lines(served, 1)
    assert "confidential harbour plan" in line["blocks"][1]["text"]
    assert (line["session_id"], line["tenant_id"]) == ("demo-session", "demo-tenant")
    assert "secret-key" not in served.app.state.traces.path.read_text()


def test_a_key_makes_hashes_that_no_guess_can_be_tested_against(proxy: Any, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a key that nobody guesses")
    key.chmod(0o600)
    hashes = []
    for settings in ({}, {"hash_key_file": str(key)}, {"hash_key_file": str(key)}):
        served = proxy(**settings)
        ask(served)
        hashes.append(lines(served, 1)[0]["blocks"][0]["content_hash"])
    assert hashes[0] != hashes[1] == hashes[2]


def test_a_trace_that_is_full_costs_no_request(proxy: Any) -> None:
    served = proxy(trace_bytes=1500)
    assert [ask(served).status_code for _ in range(4)] == [200] * 4
    assert len(lines(served, 4)) == 1
    assert served.client.get("/health").json() == {"status": "ok", "traced": 1, "not_traced": 3}


def test_large_bodies_do_not_wait_for_their_lines_without_bound(proxy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body lies in memory until its line is written."""
    monkeypatch.setattr("semblend_dynamo.proxy.traces._MOST_BYTES", 100_000)
    served = proxy()
    traces = served.app.state.traces
    writing = threading.Event()
    traces._thread.submit(writing.wait, 60)
    assert [ask(served, user="x" * 80_000).status_code for _ in range(4)] == [200] * 4
    assert traces.dropped == 3
    writing.set()
    assert len(lines(served, 4)) == 1


def test_what_cannot_be_traced_is_counted(proxy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(body: object) -> None:
        raise KeyError("the prompt")

    monkeypatch.setattr("semblend_dynamo.proxy.traces.segment_request", fail)
    served = proxy()
    assert ask(served).status_code == 200
    assert lines(served, 1) == []
    assert served.client.get("/health").json() == {"status": "ok", "traced": 0, "not_traced": 1}


def test_what_the_server_says_is_the_clients_to_read(proxy: Any) -> None:
    served = proxy()
    served.stub.app.state.behaviour.api_key = "another"
    answer = ask(served)
    assert (answer.status_code, answer.json()["error"]["message"]) == (401, "wrong key")
    assert lines(served, 1)[0]["status"] == 401
    assert served.client.get("/v1/models").json()["data"][0]["id"] == "stub"


def test_bad_requests_and_dead_servers(proxy: Any) -> None:
    served = proxy(max_body=2000, timeout_s=0.5)
    assert served.client.post("/v1/completions", content=b"{").status_code == 400
    assert served.client.post("/v1/completions", content=b"x" * 3000).status_code == 413
    served.stub.app.state.behaviour.first_s = 600
    assert ask(served).status_code == 504
    served.stub.stop()
    assert ask(served).status_code == 502
    page = served.client.get("/metrics").text
    for status in (400, 413, 502, 504):
        assert f'semblend_proxy_requests_total{{status="{status}"}} 1.0' in page


def test_the_published_names_are_read() -> None:
    settings = ProxySettings.from_env(
        {
            "SEMANTICKV_UPSTREAM_BASE_URL": "http://localhost:8001",
            "SEMANTICKV_TRACE_OUTPUT_DIR": "/somewhere",
            "SEMANTICKV_REDACT_TEXT": "false",
            "SEMANTICKV_PROXY_TIMEOUT_SECONDS": "7",
        }
    )
    assert (settings.upstream, settings.trace_dir) == ("http://localhost:8001", "/somewhere")
    assert (settings.redact, settings.timeout_s, settings.port) == (False, 7.0, 8010)


def test_what_cannot_work_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="set SEMBLEND_PROXY_UPSTREAM"):
        create_app(ProxySettings())
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="SEMBLEND_PROXY_TRACE_DIR"):
        create_app(ProxySettings(upstream="http://a:1", trace_dir=str(tmp_path / "file" / "traces")))
