"""Replicas that die and come back: every request that had not begun to stream is served."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest

from semblend_core.testing import wait_until
from semblend_dynamo.gateway.upstream import Failure
from semblend_dynamo.router.replicas import Breaker, BreakerState, Replica


def test_every_request_is_served_while_a_replica_is_killed(fleet: Any, stub_process: Any) -> None:
    stubs = [stub_process() for _ in range(3)]
    served = fleet(urls=[stub.url for stub in stubs], policy="round_robin", probe_interval_s=0.2)
    statuses: list[int] = []
    end = time.monotonic() + 120

    def client() -> None:
        with httpx.Client(base_url=served.url, timeout=60, trust_env=False) as own:
            for _ in range(40):
                assert time.monotonic() < end
                answer = own.post("/v1/completions", json={"model": "stub", "prompt": "hi", "stream": True})
                ended_well = answer.text.endswith("data: [DONE]\n\n")
                # One that had begun when its replica died cannot be served again: it must say so.
                statuses.append(answer.status_code if ended_well or "broke_off" in answer.text else 0)

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(statuses) > 20, "traffic flows", every_s=0.01)
    stubs[0].kill()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 160
    assert served.status()["replicas"][0]["failures"]


@pytest.mark.parametrize("policy", ["round_robin", "least_loaded", "prefix_hash", "semantic_locality"])
def test_a_dead_home_is_no_loss(fleet: Any, stub_process: Any, policy: str) -> None:
    stubs = [stub_process(), stub_process()]
    # Probes are far apart: requests find out by themselves.
    served = fleet(urls=[stub.url for stub in stubs], policy=policy, probe_interval_s=3600)
    text = " ".join(f"word{n}" for n in range(200))
    home = served.chat(text).headers["x-semblend-replica"]
    stubs[int(home[-1])].kill()
    for number in range(6):
        answer = served.chat(f"{number} {text}", headers={"x-session-id": "s"})
        assert answer.status_code == 200
        assert answer.headers["x-semblend-replica"] != home


def test_a_request_that_went_elsewhere_is_not_said_to_be_placed(fleet: Any, stub_process: Any) -> None:
    """Who counts placement by the header must not count it."""
    stubs = [stub_process(), stub_process()]
    served = fleet(urls=[stub.url for stub in stubs], probe_interval_s=3600)
    text = " ".join(f"word{n}" for n in range(200))
    home = served.chat(text).headers["x-semblend-replica"]
    wait_until(lambda: served.status()["donors"] == 1, "it is remembered", every_s=0.01)
    assert served.chat(f"0 {text}").headers["x-semblend-routing-path"] == "semantic_locality"
    stubs[int(home[-1])].kill()
    answer = served.chat(f"1 {text}")
    assert answer.headers["x-semblend-replica"] != home
    assert answer.headers["x-semblend-routing-path"] == "fallback"
    assert answer.headers["x-semblend-routing-reason"] == "failover"


def test_a_replica_that_comes_back_is_used_again_and_has_forgotten_everything(fleet: Any, stub_process: Any) -> None:
    stubs = [stub_process(), stub_process()]
    served = fleet(urls=[stub.url for stub in stubs], probe_interval_s=0.1, breaker_failures=1, breaker_open_s=3600)
    text = " ".join(f"word{n}" for n in range(200))
    home = served.chat(text).headers["x-semblend-replica"]
    wait_until(lambda: served.status()["donors"] == 1, "it is remembered", every_s=0.01)
    number = int(home[-1])
    stubs[number].kill()
    wait_until(lambda: not served.status()["replicas"][number]["available"], "its death is noticed", every_s=0.02)
    assert served.client.get("/health").json()["replicas"] == 1
    stub_process(port=int(stubs[number].url.rsplit(":", 1)[1]))
    wait_until(lambda: served.status()["replicas"][number]["available"], "its return is noticed", every_s=0.02)
    answer = served.chat(f"Again: {text}")
    assert answer.headers["x-semblend-routing-reason"] == "not_resident"


def test_without_any_replica_it_says_so_and_stays_alive(fleet: Any, stub_process: Any) -> None:
    stub = stub_process()
    served = fleet(urls=[stub.url], probe_interval_s=0.1)
    stub.kill()
    answer = served.chat("hi")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "no_answer")
    wait_until(lambda: served.client.get("/health").status_code == 503, "health tells", every_s=0.02)
    assert served.client.get("/v1/models").status_code == 502


def test_health_is_what_the_probe_path_says(fleet: Any, serve: Any) -> None:
    from semblend_dynamo.stub_replica import create_stub

    stub = serve(create_stub())
    assert fleet(urls=[stub.url], probe_path="/v1/models").client.get("/health").status_code == 200
    assert fleet(urls=[stub.url], probe_path="/not-there").client.get("/health").status_code == 503


def test_a_breaker_opens_tries_once_and_closes() -> None:
    now = [0.0]
    breaker = Breaker(2, 10, lambda: now[0])
    breaker.failed()
    assert breaker.admits
    breaker.failed()
    assert (breaker.state, breaker.admits) == (BreakerState.OPEN, False)
    now[0] = 10.0
    assert breaker.admits
    breaker.asked()
    assert (breaker.state, breaker.admits) == (BreakerState.HALF_OPEN, False)
    breaker.failed()
    assert not breaker.admits
    now[0] = 20.0
    breaker.asked()
    breaker.gave_up()
    assert breaker.admits
    breaker.asked()
    breaker.succeeded()
    assert (breaker.state, breaker.admits) == (BreakerState.CLOSED, True)


@pytest.mark.parametrize(("failure", "opens"), [(each, each not in ("status", "busy")) for each in Failure])
def test_only_a_replicas_own_failures_open_its_breaker(failure: Failure, opens: bool) -> None:
    replica = Replica("r", "http://r", Breaker(1, 10))
    replica.failed(failure)
    assert replica.available is not opens


def test_busy_replicas_make_requests_wait_and_then_refuse_them(fleet: Any) -> None:
    served = fleet(1, replica_in_flight=1, queue=1, queue_timeout_s=0.3)
    served.behaviours[0].first_s = 600
    refused: list[httpx.Response] = []

    def occupy() -> None:
        client = httpx.Client(base_url=served.url, timeout=2, trust_env=False)
        with client, pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json={"model": "stub", "prompt": "hi"})

    def wait() -> None:
        with httpx.Client(base_url=served.url, timeout=60, trust_env=False) as own:
            refused.append(own.post("/v1/completions", json={"model": "stub", "prompt": "hi"}))

    first = threading.Thread(target=occupy)
    first.start()
    wait_until(lambda: served.status()["under_way"] == 1, "one is under way", every_s=0.01)
    second = threading.Thread(target=wait)
    second.start()
    second.join()
    assert [(each.status_code, each.headers["retry-after"]) for each in refused] == [(429, "1")]
    assert "stayed busy" in refused[0].json()["error"]["message"]
    first.join()
    wait_until(lambda: served.status()["under_way"] == 0, "the client that left made room", every_s=0.01)
    served.behaviours[0].first_s = 0
    assert served.chat("hi").status_code == 200


def test_a_full_queue_refuses_at_once(fleet: Any) -> None:
    served = fleet(1, replica_in_flight=1, queue=0)
    served.router.admission.under_way = 1
    answer = served.chat("hi")
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        429,
        "all replicas are busy and the queue is full",
    )


def test_who_waits_is_let_in_when_there_is_room(fleet: Any) -> None:
    served = fleet(1, replica_in_flight=1, queue=100, queue_timeout_s=60)
    served.behaviours[0].first_s = 0.05
    statuses: list[int] = []

    def ask() -> None:
        with httpx.Client(base_url=served.url, timeout=60, trust_env=False) as own:
            statuses.append(own.post("/v1/completions", json={"model": "stub", "prompt": "hi"}).status_code)

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 12
    assert served.router.admission.waiting == 0
