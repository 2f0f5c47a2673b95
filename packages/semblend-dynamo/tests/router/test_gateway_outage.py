"""A gateway that fails for a while: afterwards every worker behind it is used again. The real smg is in test_smg."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from semblend_core.testing import wait_until

WORKERS = ["http://worker-0:8000", "http://worker-1:8000"]


def gateway() -> FastAPI:
    """As smg answers: a list of workers, and each answer with the one that it came from."""
    app = FastAPI()
    app.state.fails = False

    @app.get("/workers")
    async def workers() -> Response:
        return JSONResponse({"workers": [{"url": url, "is_healthy": True} for url in WORKERS]})

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> Response:
        if app.state.fails:
            return JSONResponse({"error": "no worker"}, 500)
        landed = WORKERS[int(request.headers.get("x-smg-target-worker", "0"))]
        return JSONResponse({"choices": []}, headers={"x-smg-routed-worker-id": landed})

    return app


def test_after_an_outage_of_the_gateway_every_worker_is_used_again(fleet: Any, serve: Any) -> None:
    behind = serve(gateway())
    served = fleet(urls=[], gateway=behind.url, policy="round_robin", breaker_failures=1, breaker_open_s=0.1)
    behind.app.state.fails = True
    assert [served.chat("hi").status_code for _ in range(4)] == [502] * 4
    behind.app.state.fails = False

    def both_serve() -> bool:
        assert served.chat("hi").status_code == 200
        return all(each["served"] and each["breaker"] == "closed" for each in served.status()["replicas"])

    wait_until(both_serve, "both workers serve again", every_s=0.02)


def test_a_gateway_that_cannot_be_reached_is_no_workers_fault(fleet: Any, serve: Any) -> None:
    behind = serve(gateway())
    served = fleet(urls=[], gateway=behind.url, breaker_failures=1, breaker_open_s=3600)
    assert served.chat("hi").status_code == 200
    behind.stop()
    assert [served.chat("hi").status_code for _ in range(4)] == [502] * 4
    assert [each["breaker"] for each in served.status()["replicas"]] == ["closed", "closed"]


@pytest.mark.parametrize("answer", [b"[]", b'{"workers": {"a": 1}}', b'{"workers": [1]}', b"<p>", b'{"workers": null}'])
def test_a_list_of_workers_that_is_none_changes_nothing(fleet: Any, serve: Any, answer: bytes) -> None:
    app = FastAPI()
    app.add_route("/workers", lambda request: Response(answer))
    served = fleet(urls=[], gateway=serve(app).url)
    refused = served.chat("hi")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_replicas")
