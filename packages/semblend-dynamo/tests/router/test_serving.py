"""OpenAI's API through the router: streaming and not, whatever the policy."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

POLICIES = ["round_robin", "least_loaded", "prefix_hash", "semantic_locality"]


@pytest.mark.parametrize("policy", POLICIES)
def test_chat_and_completions_are_answered(fleet: Any, policy: str) -> None:
    served = fleet(policy=policy)
    answer = served.chat("hello")
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == " word" * 16
    assert served.complete("hello").json()["choices"][0]["text"] == " word" * 16
    assert answer.headers["x-semblend-replica"] in ("replica-0", "replica-1")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_streams_come_piece_by_piece(fleet: Any, path: str) -> None:
    served = fleet()
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    body = {"model": "stub", "stream": True, "stream_options": {"include_usage": True}, **prompt}
    with served.client.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert len(lines) == 18
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2].removeprefix("data: "))["usage"]["prompt_tokens"] == 1


def test_the_body_reaches_the_replica_as_it_was_sent(fleet: Any) -> None:
    served = fleet(1)
    strange = {"model": "stub", "prompt": "ä\u0000\U0001f600", "unknown": [1.0, None], "temperature": 0}
    served.client.post("/v1/completions", json=strange)
    assert served.seen[0].bodies == [strange]


def test_keys_and_other_headers_go_through_and_pins_do_not(fleet: Any) -> None:
    served = fleet(1)
    sent = {"authorization": "Bearer secret-key", "x-custom": "1", "x-smg-target-worker": "0", "x-request-id": "mine"}
    answer = served.chat("hi", headers=sent)
    came = served.seen[0].headers[0]
    assert (came["authorization"], came["x-custom"], came["x-request-id"]) == ("Bearer secret-key", "1", "mine")
    assert "x-smg-target-worker" not in came
    assert answer.headers["x-request-id"] == "mine"


def test_a_replicas_refusal_is_the_clients(fleet: Any) -> None:
    served = fleet(1)
    served.behaviours[0].api_key = "right"
    answer = served.chat("hi", headers={"authorization": "Bearer wrong"})
    assert answer.status_code == 401
    assert answer.json()["error"]["message"] == "wrong key"
    assert served.router.backend.replicas[0].breaker.admits


def test_models_health_and_replicas(fleet: Any) -> None:
    served = fleet(2)
    assert served.client.get("/v1/models").json()["data"][0]["id"] == "stub"
    assert served.client.get("/health").json() == {"status": "ok", "replicas": 2}
    listed = served.client.get("/v1/replicas").json()["replicas"]
    assert [each["name"] for each in listed] == ["replica-0", "replica-1"]
    assert served.client.get("/v1/elsewhere").status_code == 404
    assert served.client.get("/v1/completions").status_code == 405


def test_metrics_tell_what_was_served_where_and_why(fleet: Any) -> None:
    served = fleet(2, policy="round_robin")
    for _ in range(4):
        served.chat("hello there")
    page = served.client.get("/metrics").text
    assert 'semblend_router_requests_total{status="200"} 4.0' in page
    reason = 'path="round_robin",reason="next_in_turn",replica="replica-0"'
    assert f"semblend_router_placements_total{{{reason}}} 2.0" in page
    assert 'semblend_router_prompt_tokens_total{path="round_robin"} 8.0' in page
    assert 'semblend_router_cached_tokens_total{path="round_robin"} 4.0' in page
    assert 'semblend_router_replica_up{replica="replica-1"} 1.0' in page


def test_route_headers_can_be_left_out(fleet: Any) -> None:
    answer = fleet(1, route_headers=False).chat("hi")
    assert [name for name in answer.headers if name.startswith("x-semblend")] == []


def test_operator_pages_can_be_closed(fleet: Any, tmp_path: Any) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    served = fleet(1, operator_token_file=str(token))
    for path in ("/status", "/status.json", "/v1/replicas", "/metrics"):
        assert served.client.get(path).status_code == 401
        right = {"authorization": "Bearer 0123456789abcdef"}
        assert served.client.get(path, headers=right).status_code == 200
        # As a browser does it, which asks for a password when it is told so.
        assert served.client.get(path).headers["www-authenticate"].startswith("Basic ")
        assert served.client.get(path, auth=("anyone", "0123456789abcdef")).status_code == 200
        for wrong in ("Basic 0123456789abcdef", "Basic !", "Bearer 0123456789abcde", "0123456789abcdef", "Basic OjA="):
            assert served.client.get(path, headers={"authorization": wrong}).status_code == 401
    assert served.client.get("/health").status_code == 200
    assert served.chat("hi").status_code == 200


def test_replicas_have_names_of_the_operators(fleet: Any, serve: Any) -> None:
    from semblend_dynamo.stub_replica import create_stub

    stub = serve(create_stub())
    answer = fleet(urls=[f"blue={stub.url}/v1/"]).chat("hi")
    assert answer.headers["x-semblend-replica"] == "blue"


def test_the_decisions_name_no_prompt_and_no_key(fleet: Any) -> None:
    served = fleet(2, decisions=3)
    for number in range(5):
        served.chat(f"confidential {number}", headers={"authorization": "Bearer secret-key"})
    page = served.client.get("/status.json").text
    assert len(json.loads(page)["decisions"]) == 3
    assert "confidential" not in page
    assert "secret-key" not in page
    everything = page + served.client.get("/metrics").text + served.client.get("/v1/replicas").text
    assert "secret-key" not in everything


def test_a_client_of_httpx_sees_a_clean_end(fleet: Any) -> None:
    """No connection is left in a state that the next request trips over."""
    served = fleet(1)
    for _ in range(20):
        assert served.chat("hi", stream=True).text.endswith("data: [DONE]\n\n")
    assert isinstance(served.client, httpx.Client)
    assert served.router.backend.replicas[0].in_flight == 0
