"""A router in front of stub replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from semblend_core import Settings
from semblend_dynamo.placement import PlacementSettings
from semblend_dynamo.router.application import create_app
from semblend_dynamo.router.building import Router, build_router
from semblend_dynamo.router.settings import RouterSettings
from semblend_dynamo.stub_replica import Behaviour, Seen, create_stub


@dataclass
class Fleet:
    """A router and its stubs; ``client`` speaks with the router."""

    url: str
    router: Router
    client: httpx.Client
    seen: list[Seen] = field(default_factory=list)
    behaviours: list[Behaviour] = field(default_factory=list)
    stops: list[Callable[[], None]] = field(default_factory=list)

    def chat(
        self, text: str, *, path: str = "/v1/chat/completions", headers: dict[str, str] | None = None, **body: Any
    ):
        asked: dict[str, Any] = {"model": "stub", "messages": [{"role": "user", "content": text}], **body}
        return self.client.post(path, json=asked, headers={"x-tenant-id": "a", **(headers or {})})

    def complete(self, prompt: Any, *, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        asked = {"model": "stub", "prompt": prompt, **body}
        return self.client.post("/v1/completions", json=asked, headers={"x-tenant-id": "a", **(headers or {})})

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.get("/status.json").json()
        return answer


@pytest.fixture
def fleet(serve: Any) -> Iterator[Callable[..., Fleet]]:
    """``fleet(replicas=2, policy=..., **settings)``: stubs in threads, and the router in front of them."""
    clients: list[httpx.Client] = []

    def start(
        replicas: int = 2, urls: list[str] | None = None, placement: PlacementSettings | None = None, **settings: Any
    ) -> Fleet:
        stubs = []
        if urls is None:
            stubs = [serve(create_stub(Behaviour(), Seen())) for _ in range(replicas)]
            urls = [stub.url for stub in stubs]
        if "gateway" not in settings:
            settings["replicas"] = ",".join(urls)
        # No limit of speed on a busy machine.
        core = Settings(lookup_budget_ms=600_000)
        router = build_router(RouterSettings(**settings), core, placement or PlacementSettings())
        served = serve(create_app(router))
        client = httpx.Client(base_url=served.url, timeout=60, trust_env=False)
        clients.append(client)
        return Fleet(
            served.url,
            router,
            client,
            [stub.app.state.seen for stub in stubs],
            [stub.app.state.behaviour for stub in stubs],
            [stub.stop for stub in stubs],
        )

    yield start
    for client in clients:
        client.close()
