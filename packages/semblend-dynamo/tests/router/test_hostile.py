"""Bad clients and bad replicas: the right status, nothing leaked, and the router goes on."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from semblend_core.testing import wait_until

SECRET = "the-secret-of-the-prompt"


def address(url: str) -> tuple[str, int]:
    parsed = httpx.URL(url)
    assert parsed.port is not None
    return parsed.host, parsed.port


@pytest.fixture
def raw_replica() -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    """A replica that does with each connection what it is told; probes are answered well."""
    listening: list[socket.socket] = []

    def start(behave: Callable[[socket.socket], None]) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        listening.append(server)

        def serve_one(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                head = connection.recv(65536)
                if head.startswith(b"GET /health"):
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
                else:
                    behave(connection)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    threading.Thread(target=serve_one, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}"

    yield start
    for server in listening:
        server.close()


def reply(head: str, body: bytes = b"") -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)


def hang(connection: socket.socket) -> None:
    connection.recv(1)


MALFORMED = [
    *(b"", b"{", f'{{"prompt": "{SECRET}"'.encode(), b"[1]", b"null", b"\xff\xfe\x00", b"[" * 100_000),
    b"{" + b'"a":{' * 100_000,
]


def test_malformed_bodies_are_refused(fleet: Any) -> None:
    served = fleet(1)
    for body in MALFORMED:
        answer = served.client.post("/v1/completions", content=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "malformed_json"), body[:20]
        assert SECRET not in answer.text
    assert served.seen[0].requests == 0
    assert served.chat("hi").status_code == 200


def test_bodies_of_very_many_values_are_refused_before_they_are_parsed(fleet: Any) -> None:
    """Ten megabytes of empty objects would take hundreds of megabytes; a prompt of as many letters is read."""
    served = fleet(1)
    empty = b'{"prompt": "a", "tools": [' + b"{}," * 3_400_000 + b"{}]}"
    answer = served.client.post("/v1/completions", content=empty)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_many_values")
    assert served.seen[0].requests == 0
    ids = {"prompt": list(range(1_000_000))}
    assert served.client.post("/v1/completions", json=ids).status_code == 200


ODD: list[dict[str, Any]] = [
    {},
    {"prompt": None},
    {"prompt": {"a": 1}},
    {"prompt": [[1, "a"], None]},
    {"prompt": [1e99, -1]},
    {"prompt": [2**80]},
    {"prompt": [True, False]},
    {"messages": "hi"},
    {"messages": [None, 1, {"role": 7, "content": {"a": [1]}}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url"}, None, 3]}]},
    {"model": 7, "stream": "yes", "cache_salt": [1], "prompt": "\ud800"},
    {"prompt": "x", "model": "m" * 100_000},
    {"prompt": "x", "model": "\udcff", "cache_salt": "\ud800"},
]


def test_odd_requests_are_the_replicas_to_judge(fleet: Any) -> None:
    served = fleet(1)
    for fields in ODD:
        answer = served.client.post("/v1/completions", content=json.dumps(fields), headers={"x-tenant-id": "a"})
        assert answer.status_code == 200, fields
    assert served.seen[0].bodies == json.loads(json.dumps(ODD))
    page = served.client.get("/status.json")
    assert page.status_code == 200
    assert len(page.content) < 20_000


def test_what_is_nested_too_deeply_is_refused(fleet: Any) -> None:
    """At some depth a body can still be parsed, and no longer be cut or written."""
    served = fleet(1, salt="remove")
    statuses = set()
    for depth in range(900, 1000):
        body = f'{{"messages": [], "cache_salt": "a", "tools": {"[" * depth}{"]" * depth}}}'
        statuses.add(served.client.post("/v1/chat/completions", content=body).status_code)
    assert statuses == {200, 400}


@pytest.mark.parametrize("announced", [True, False])
def test_huge_bodies_are_refused_without_being_read(fleet: Any, announced: bool) -> None:
    served = fleet(1, max_body=10_000)
    part = b"x" * 1000
    content = part * 11 if announced else (part for _ in range(11))
    answer = served.client.post("/v1/completions", content=content)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"
    assert served.router.bodies.held == 0
    assert served.chat("hi").status_code == 200


def test_bodies_together_have_a_budget(fleet: Any) -> None:
    served = fleet(1, body_memory=50_000)
    assert served.complete("x" * 40_000).status_code == 200
    served.router.bodies.take(20_000)
    answer = served.complete("x" * 40_000)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert served.router.bodies.held == 20_000


def test_a_slow_body_is_given_up(fleet: Any) -> None:
    served = fleet(1, body_timeout_s=0.2)
    with socket.create_connection(address(served.url)) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 408")
    assert served.chat("hi").status_code == 200


@pytest.mark.parametrize("sent", [b"", b"POST /v1/comp", b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-a"])
def test_a_client_that_never_finishes_its_head_is_let_go(fleet: Any, sent: bytes) -> None:
    served = fleet(1)
    with socket.create_connection(address(served.url)) as connection:
        connection.sendall(sent)
        connection.settimeout(60)
        assert connection.recv(65536) == b""
    assert served.chat("hi").status_code == 200


@pytest.mark.parametrize(("opening", "more"), [(b"x-a: b\r\n", b"x-a: b\r\n"), (b"x-a: ", b"b")])
def test_a_head_without_end_is_refused_before_it_fills_the_memory(fleet: Any, opening: bytes, more: bytes) -> None:
    served = fleet(1)
    with socket.create_connection(address(served.url)) as connection:
        connection.settimeout(60)
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n" + opening)
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                connection.sendall(more * (65536 // len(more)))
            pytest.fail("four megabytes of a head were taken")
    assert served.chat("hi", headers={"x-long": "a" * 50_000}).status_code == 200


def test_what_is_no_http_is_refused(fleet: Any) -> None:
    served = fleet(1)
    for garbage in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"\0" * 1000):
        with socket.create_connection(address(served.url)) as connection:
            connection.settimeout(60)
            connection.sendall(garbage)
            answer = connection.recv(65536)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert served.chat("hi").status_code == 200


def test_a_client_that_leaves_takes_its_request_along(fleet: Any) -> None:
    served = fleet(1)
    served.behaviours[0].first_s = 600
    with socket.create_connection(address(served.url)) as connection:
        body = b'{"model": "stub", "prompt": "hi", "stream": true}'
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        connection.sendall(head + body)
        wait_until(lambda: served.status()["under_way"] == 1, "the request is under way", every_s=0.01)
    wait_until(lambda: served.status()["under_way"] == 0, "the request is over", every_s=0.01)
    assert "semblend_router_clients_left_total 1.0" in served.client.get("/metrics").text
    assert served.router.backend.replicas[0].in_flight == 0
    assert served.router.bodies.held == 0


def test_a_client_that_reads_nothing_is_left(fleet: Any) -> None:
    """Its answer is longer than all buffers between: the replica must not be held for it for ever."""
    # Long enough that a busy machine's replica is never the one that seems to stall.
    served = fleet(1, stall_timeout_s=3)
    served.behaviours[0].pieces = 150_000
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(address(served.url))
        body = b'{"model": "stub", "prompt": "hi", "stream": true}'
        connection.sendall(f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode())
        connection.sendall(body)
        wait_until(lambda: served.status()["replicas"][0]["served"] == 1, "it has begun", every_s=0.01)
        wait_until(lambda: served.status()["under_way"] == 0, "the request is given up", every_s=0.05)
    assert "semblend_router_clients_left_total 1.0" in served.client.get("/metrics").text
    served.behaviours[0].pieces = 3
    assert served.chat("hi").status_code == 200


GARBAGE = {
    "no http": lambda connection: connection.sendall(b"\x00\x01\x02 what?\r\n\r\n"),
    "nothing": lambda connection: None,
    "half a head": lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-ty"),
    "no json": reply("HTTP/1.1 200 OK\ncontent-length: 3", b"<p>"),
    "json, no object": reply("HTTP/1.1 200 OK\ncontent-length: 3", b"[1]"),
    "empty": reply("HTTP/1.1 200 OK\ncontent-length: 0"),
    "cut body": reply("HTTP/1.1 200 OK\ncontent-length: 1000", b'{"a"'),
    "bad chunks": reply("HTTP/1.1 200 OK\ntransfer-encoding: chunked", b"zz\r\n"),
    "an endless head": lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 200_000),
    "500": reply("HTTP/1.1 500 Oops\ncontent-length: 5", b"trace"),
    "503": reply("HTTP/1.1 503 Later\ncontent-length: 0"),
    "a redirect": reply("HTTP/1.1 307 There\nlocation: http://127.0.0.1:1/\ncontent-length: 0"),
    "more than was announced": reply("HTTP/1.1 200 OK\ncontent-length: 3", b"{}}HTTP/1.1 200 OK\r\n\r\n"),
}


def test_replicas_that_send_garbage_are_replaced_before_the_client_sees_any(
    fleet: Any, raw_replica: Any, serve: Any
) -> None:
    from semblend_dynamo.stub_replica import create_stub

    kinds = sorted(GARBAGE)
    urls = [f"good={serve(create_stub()).url}", *(raw_replica(GARBAGE[kind]) for kind in kinds)]
    served = fleet(urls=urls, policy="round_robin", breaker_failures=1000)
    for _ in range(2 * len(urls)):
        answer = served.chat("hi")
        assert answer.status_code == 200
        assert answer.headers["x-semblend-replica"] == "good"
    failed = {each["name"]: each["failures"] for each in served.status()["replicas"] if each["name"] != "good"}
    assert len(failed) == len(kinds)
    assert all(failed.values())


@pytest.mark.parametrize("kind", ["no http", "no json", "cut body", "500", "a redirect"])
def test_garbage_from_the_only_replica_is_a_502_that_quotes_none_of_it(fleet: Any, raw_replica: Any, kind: str) -> None:
    served = fleet(urls=[raw_replica(GARBAGE[kind])])
    answer = served.chat(SECRET)
    assert answer.status_code == 502
    for word in ("trace", "what?", SECRET, "127.0.0.1:"):
        assert word not in answer.text
        assert word not in str(answer.headers)
    assert served.client.get("/status.json").status_code == 200


def test_a_stream_that_opens_with_garbage_is_replaced(fleet: Any, raw_replica: Any, serve: Any) -> None:
    from semblend_dynamo.stub_replica import create_stub

    opening = reply("HTTP/1.1 200 OK\ncontent-type: text/event-stream\nconnection: close", b"<html>oops")
    good = serve(create_stub())
    served = fleet(urls=[raw_replica(opening), good.url], policy="round_robin")
    for _ in range(4):
        assert served.chat("hi", stream=True).text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("cut", [b"\n", b"d", b"\xef\xbb\xbfdat", b"even", b":", b"data:"])
def test_a_stream_that_arrives_in_bits_is_no_garbage(fleet: Any, raw_replica: Any, cut: bytes) -> None:
    behind = {b"\n": b"data: ", b"d": b"ata: ", b"\xef\xbb\xbfdat": b"a: ", b"even": b"t: a\ndata: "}.get(
        cut, b" \n\ndata: "
    )

    def in_bits(connection: socket.socket) -> None:
        reply("HTTP/1.1 200 OK\ncontent-type: text/event-stream\nconnection: close", cut)(connection)
        time.sleep(0.05)
        connection.sendall(behind + b"[DONE]\n\n")

    served = fleet(urls=[raw_replica(in_bits)])
    answer = served.chat("hi", stream=True)
    assert (answer.status_code, answer.content) == (200, cut + behind + b"[DONE]\n\n")


def test_a_stream_that_breaks_off_ends_with_an_error_event(fleet: Any, raw_replica: Any) -> None:
    """What has begun cannot begin anew elsewhere: the client is told, and never sees a clean end."""
    has_begun = threading.Event()

    def cut(connection: socket.socket) -> None:
        reply(
            "HTTP/1.1 200 OK\ncontent-type: text/event-stream\ntransfer-encoding: chunked",
            b'16\r\ndata: {"choices":[]}\n\n\r\n',
        )(connection)
        assert has_begun.wait(600)

    served = fleet(urls=[raw_replica(cut)])
    body = {"model": "stub", "prompt": "hi", "stream": True}
    with served.client.stream("POST", "/v1/completions", json=body) as answer:
        pieces = answer.iter_text()
        text = next(pieces)
        has_begun.set()
        text += "".join(pieces)
    assert "[DONE]" not in text
    assert json.loads(text.strip().splitlines()[-1].removeprefix("data: "))["error"]["code"] == "broke_off"
    assert "semblend_router_broke_off_total 1.0" in served.client.get("/metrics").text


def test_a_replica_that_dies_behind_the_end_of_its_stream_broke_nothing_off(fleet: Any, raw_replica: Any) -> None:
    """The last chunk is missing, and nothing of the answer."""

    def whole(connection: socket.socket) -> None:
        reply(
            "HTTP/1.1 200 OK\ncontent-type: text/event-stream\ntransfer-encoding: chunked",
            b'16\r\ndata: {"choices":[]}\n\n\r\n7\r\ndata: [\r\n7\r\nDONE]\n\n\r\n',
        )(connection)

    served = fleet(urls=[raw_replica(whole)])
    assert served.chat("hi", stream=True).text.endswith("data: [DONE]\n\n")
    assert "semblend_router_broke_off_total 0.0" in served.client.get("/metrics").text


@pytest.mark.parametrize(("stream", "limit"), [(True, "first_byte_timeout_s"), (False, "whole_answer_timeout_s")])
def test_a_half_open_replica_is_given_up_and_another_asked(
    fleet: Any, raw_replica: Any, serve: Any, stream: bool, limit: str
) -> None:
    from semblend_dynamo.stub_replica import create_stub

    good = serve(create_stub())
    served = fleet(urls=[raw_replica(hang), good.url], policy="round_robin", **{limit: 0.3})
    for _ in range(2):
        assert served.chat("hi", stream=stream).headers["x-semblend-replica"] == "replica-1"
    assert served.status()["replicas"][0]["failures"] == {"timeout": 1}


def test_an_answer_that_is_no_stream_may_take_longer_than_a_first_byte(fleet: Any) -> None:
    """Engines send nothing of it before it is whole: a long answer must not count as a dead replica."""
    served = fleet(2, first_byte_timeout_s=0.2)
    for behaviour in served.behaviours:
        behaviour.first_s = 0.6
    assert served.chat("hi").status_code == 200
    assert [each["failures"] for each in served.status()["replicas"]] == [{}, {}]
    assert served.chat("hi", stream=True).status_code == 504


def test_only_half_open_replicas_are_a_504(fleet: Any, raw_replica: Any) -> None:
    served = fleet(urls=[raw_replica(hang)], whole_answer_timeout_s=0.2)
    answer = served.chat("hi")
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "replica_timeout")


def test_a_stream_that_stalls_is_ended(fleet: Any, raw_replica: Any) -> None:
    def stall(connection: socket.socket) -> None:
        reply(
            "HTTP/1.1 200 OK\ncontent-type: text/event-stream\ntransfer-encoding: chunked",
            b'16\r\ndata: {"choices":[]}\n\n\r\n',
        )(connection)
        hang(connection)

    served = fleet(urls=[raw_replica(stall)], stall_timeout_s=0.3)
    assert "broke_off" in served.chat("hi", stream=True).text


def test_a_request_has_a_time_as_a_whole(fleet: Any) -> None:
    served = fleet(1, timeout_s=0.3)
    served.behaviours[0].first_s = 600
    answer = served.chat("hi")
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
    wait_until(lambda: served.status()["under_way"] == 0, "it is over", every_s=0.01)


def test_a_poisonous_request_does_not_shut_replicas_off(fleet: Any, raw_replica: Any) -> None:
    """Status 500 may be the request's own doing: one client must not take the fleet from all others."""
    served = fleet(urls=[raw_replica(GARBAGE["500"])], breaker_failures=1)
    for _ in range(5):
        assert served.chat("poison").status_code == 502
    assert served.status()["replicas"][0]["breaker"] == "closed"


def test_many_at_once_and_some_of_them_bad(fleet: Any) -> None:
    served = fleet(2, policy="round_robin")
    end = time.monotonic() + 60
    results: list[int] = []

    def client(number: int) -> None:
        with httpx.Client(base_url=served.url, timeout=60, trust_env=False) as own:
            for turn in range(10):
                assert time.monotonic() < end
                content = b"{" if (number + turn) % 3 == 0 else b'{"model": "stub", "prompt": "hi"}'
                results.append(own.post("/v1/completions", content=content).status_code)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (results.count(200), results.count(400)) == (53, 27)
    wait_until(lambda: served.router.bodies.held == 0, "all bodies are given back", every_s=0.01)


def test_one_id_for_many_requests_at_once_mixes_nothing_up(fleet: Any) -> None:
    served = fleet(2)
    served.behaviours[0].first_s = served.behaviours[1].first_s = 0.05
    words = [" ".join(f"w{n}-{m}" for m in range(100)) for n in range(8)]
    statuses: list[int] = []

    def client(number: int) -> None:
        with httpx.Client(base_url=served.url, timeout=60, trust_env=False) as own:
            headers = {"x-request-id": "the-same", "x-tenant-id": "a"}
            body = {"model": "stub", "prompt": words[number]}
            statuses.extend(own.post("/v1/completions", json=body, headers=headers).status_code for _ in range(3))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 24
    assert "error" not in {each["reason"] for each in served.status()["decisions"]}
    wait_until(lambda: served.status()["donors"] == 8, "all are remembered", every_s=0.01)
    served.router.policy.check_integrity()


def test_a_policy_that_fails_costs_no_request(fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served = fleet(2)

    async def fail(*arguments: object) -> None:
        raise ValueError(SECRET)

    monkeypatch.setattr(served.router.policy, "choose", fail)
    answer = served.chat("hi")
    assert answer.status_code == 200
    assert answer.headers["x-semblend-routing-reason"] == "error"
