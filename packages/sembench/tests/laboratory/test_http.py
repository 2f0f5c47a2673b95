from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from sembench.laboratory.config import CacheSettings
from sembench.laboratory.http import app as importable
from sembench.laboratory.http import create_app
from sembench.laboratory.http.bodies import SimulatedRequest
from sembench.laboratory.http.body_limit import MOST_BYTES
from sembench.laboratory.http.live import LiveCaches
from sembench.laboratory.plots import EXPERIMENT_FIGURES
from sembench.laboratory.trace_schema import TraceBlock
from sembench.laboratory.traces import read_trace

PUBLISHED_REQUEST = {
    "request_id": "req_001",
    "session_id": "sess_001",
    "messages": [
        {"role": "system", "content": "You are a support assistant."},
        {"role": "user", "content": "CONTEXT: Document: refund policy section.\n\nUSER: summarize the policy."},
    ],
}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    settings = CacheSettings(cache_token_budget=1000, policies=["lru", "lfu"])
    with TestClient(create_app(tmp_path / "out", settings)) as opened:
        yield opened


def test_the_published_request_is_served(client: TestClient) -> None:
    assert client.get("/health").json()["status"] == "ok"
    first = client.post("/v1/simulate/request", json=PUBLISHED_REQUEST)
    assert first.status_code == 200
    assert [block["semantic_type"] for block in first.json()["blocks"]] == ["system", "retrieved_context", "user"]
    again = client.post("/v1/simulate/request", json=PUBLISHED_REQUEST | {"request_id": "req_002"}).json()
    assert [each["policy"] for each in again["policies"]] == ["lru", "lfu"]
    for each in again["policies"]:
        assert each["cached_tokens"] == again["prompt_tokens"]
        assert each["estimated_ttft_ms"] == 80


def test_state_metrics_and_trace_tell_what_was_served(client: TestClient, tmp_path: Path) -> None:
    for number in range(3):
        client.post("/v1/simulate/request", json=PUBLISHED_REQUEST | {"request_id": f"r{number}"})
    state = client.get("/v1/cache/state", params={"policy": "lfu"}).json()
    assert (state["policy"], state["resident_blocks"]) == ("lfu", 3)
    assert state["held_tokens"] == sum(block["tokens"] for block in state["blocks"])
    summary = client.get("/v1/metrics/summary").json()
    assert [(each["policy"], each["requests"]) for each in summary["policies"]] == [("lru", 3), ("lfu", 3)]
    assert summary["policies"][0]["hit_ratio"] == pytest.approx(2 / 3)
    lines = client.get("/v1/traces/latest", params={"limit": 2}).json()
    assert [line["request_id"] for line in lines] == ["r1", "r2"]
    assert "refund" not in json.dumps(lines)
    path = tmp_path / "latest.json"
    path.write_text(json.dumps(lines))
    assert len(read_trace(path)) == 2


def test_metrics_of_nothing_are_unknown_and_not_zero(client: TestClient) -> None:
    assert client.get("/v1/metrics/summary").json()["policies"][0]["hit_ratio"] is None


def test_what_a_server_remembers_does_not_grow_with_its_requests() -> None:
    live = LiveCaches(CacheSettings(cache_token_budget=100, policies=["lru"]))
    for number in range(50):
        block = TraceBlock(content_hash=f"{number}", token_count=60, semantic_type=f"type-{number}")
        live.serve(SimulatedRequest(request_id="r", blocks=[block]))
    (told,) = live.summary().policies
    assert told.evictions_by_type == {"other": 49}
    assert told.avg_ttft_ms == pytest.approx(80 + 60 * 0.08)
    assert len(live.tally("lru").ttfts) == 0


def test_raw_prompts_and_blocks_are_served_too(client: TestClient) -> None:
    text = client.post("/v1/simulate/request", json={"request_id": "a", "prompt": "SYSTEM: be brief\n\nUSER: why?"})
    assert [block["semantic_type"] for block in text.json()["blocks"]] == ["system", "user"]
    blocks = [{"content_hash": "x", "semantic_type": "code", "token_count": 10}]
    cut = client.post("/v1/simulate/request", json={"request_id": "b", "blocks": blocks})
    assert cut.json()["prompt_tokens"] == 10


def test_a_clock_that_goes_back_harms_nobody(client: TestClient) -> None:
    for at in (5000.0, 10.0):
        body = PUBLISHED_REQUEST | {"timestamp_ms": at}
        assert client.post("/v1/simulate/request", json=body).status_code == 200


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "body: Field required"),
        (b"{", "body.1: JSON decode error"),
        (b"[]", "body: "),
        (b"{}", "body.request_id: Field required"),
        (b'{"request_id": ""}', "body.request_id: "),
        (b'{"request_id": "\\ud800", "prompt": "x"}', "body.request_id: "),
        (b'{"request_id": "a"}', "give messages, prompt or blocks"),
        (b'{"request_id": "a", "prompt": "x", "blocks": []}', "body.blocks: "),
        (b'{"request_id": "a", "messages": []}', "body.messages: "),
        (b'{"request_id": "a", "messages": [{"role": "user"}]}', "hold no text"),
        (b'{"request_id": "a", "prompt": "x", "timestamp_ms": NaN}', "body.timestamp_ms: "),
        (b'{"request_id": "a", "prompt": "x", "timestamp_ms": -1}', "body.timestamp_ms: "),
        (b'{"request_id": "a", "prompt": "x", "timestamp_ms": 1e99}', "body.timestamp_ms: "),
        (b'{"request_id": "a", "blocks": [{"content_hash": "h", "token_count": 0}]}', "body.blocks.0.token_count: "),
        (b'{"request_id": "a", "blocks": [{"content_hash": "h", "token_count": 1e30}]}', "body.blocks.0.token_count: "),
    ],
)
def test_what_is_wrong_with_a_request_is_named(client: TestClient, body: bytes, said: str) -> None:
    answer = client.post("/v1/simulate/request", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert said in "\n".join(answer.json()["detail"])
    assert client.get("/health").json()["requests"] == 0


@pytest.mark.parametrize("body", [b"[" * 50_000, b'{"request_id": "\xff"}'])
def test_a_body_that_cannot_be_read_is_refused(client: TestClient, body: bytes) -> None:
    answer = client.post("/v1/simulate/request", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert "parsing the body" in answer.json()["detail"][0]


def test_a_body_that_is_too_large_is_refused(client: TestClient) -> None:
    answer = client.post("/v1/simulate/request", content=b'"' + b"a" * MOST_BYTES + b'"')
    assert answer.status_code == 413
    assert "larger than" in answer.json()["detail"][0]


def test_an_experiment_runs_and_its_figures_are_there(client: TestClient, tmp_path: Path) -> None:
    order = {"experiment": "multi_agent", "seeds": 1, "requests": 20, "policies": ["lru"]}
    done = client.post("/v1/experiments/run", json=order)
    assert done.status_code == 200
    body = done.json()
    assert [each["policy"] for each in body["policies"]] == ["lru"]
    assert (tmp_path / "out" / "experiments" / body["run"] / "results.json").is_file()
    assert len(body["figures"]) == len(EXPERIMENT_FIGURES)
    picture = client.get(body["figures"][0])
    assert picture.headers["content-type"] == "image/png"
    assert picture.content.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("order", "status"),
    [
        ({"experiment": "nothing"}, 404),
        ({"experiment": "../../etc/passwd"}, 404),
        ({"experiment": "multi_agent", "seeds": 21}, 422),
        ({"experiment": "multi_agent", "seeds": 0}, 422),
        ({"experiment": "multi_agent", "requests": 10**9}, 422),
        ({"experiment": "multi_agent", "policies": ["magic"]}, 422),
        ({"experiment": "multi_agent", "policies": []}, 422),
        ({"experiment": "multi_agent", "costs_file": "/etc/passwd"}, 422),
    ],
)
def test_an_order_that_cannot_be_run_writes_nothing(
    client: TestClient, tmp_path: Path, order: dict[str, Any], status: int
) -> None:
    assert client.post("/v1/experiments/run", json=order).status_code == status
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "path", ["x/results.json", "..%2f..%2fx/summary.md", "x/tokens_saved_by_policy.png", ".hidden/a"]
)
def test_only_pictures_of_runs_are_given(client: TestClient, path: str) -> None:
    assert client.get(f"/v1/experiments/runs/{path}").status_code == 404


def test_one_experiment_at_a_time(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from sembench.laboratory.http import application

    inside, leave = threading.Event(), threading.Event()
    running = application.run_experiment

    def slow(config: Any) -> Any:
        inside.set()
        assert leave.wait(60)
        return running(config)

    monkeypatch.setattr(application, "run_experiment", slow)
    order = {"experiment": "multi_agent", "seeds": 1, "requests": 5, "policies": ["lru"]}
    codes: list[int] = []
    first = threading.Thread(target=lambda: codes.append(client.post("/v1/experiments/run", json=order).status_code))
    first.start()
    assert inside.wait(60)
    assert client.post("/v1/experiments/run", json=order).status_code == 409
    leave.set()
    first.join(60)
    assert codes == [200]


def test_the_application_is_importable_for_uvicorn() -> None:
    paths = importable.openapi()["paths"]
    assert set(paths) >= {
        "/health",
        "/v1/simulate/request",
        "/v1/experiments/run",
        "/v1/cache/state",
        "/v1/metrics/summary",
        "/v1/traces/latest",
    }


def test_the_trace_is_bounded_by_its_blocks_too() -> None:
    live = LiveCaches(CacheSettings(cache_token_budget=100, policies=["fifo"]))
    blocks = [TraceBlock(content_hash=f"h{number}", token_count=1) for number in range(5000)]
    for number in range(23):
        live.serve(SimulatedRequest(request_id=f"r{number}", blocks=blocks))
    kept = live.trace(1000)
    assert [request.request_id for request in kept] == [f"r{number}" for number in range(3, 23)]
    assert live.requests == 23
