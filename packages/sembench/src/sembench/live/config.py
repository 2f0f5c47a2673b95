"""What a replay was told to do. It is compared on resume and kept in the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import httpx
from pydantic import BaseModel, ConfigDict

from sembench.live.endpoint import Endpoint
from sembench.live.openai import OpenAIEndpoint, ServerTemplate
from sembench.live.sglang import SGLangEndpoint
from sembench.schema import InputError

Engine = Literal["openai", "sglang"]
LiveArm = Literal["cold", "exact", "warm", "probe"]

API_KEY_VARIABLE = "SEMBENCH_API_KEY"
REUSE_OFF: Mapping[str, Any] = {"kv_transfer_params": {"semblend": "off"}}
"""Switches semantic reuse and donor capture off for one request, in SemBlend's adapters."""


class LiveConfig(BaseModel):
    """Everything that decides what is sent and what is measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: Engine
    url: str
    donor_url: str | None = None
    worker_url: str | None = None
    model: str
    max_items: int | None = None
    concurrency: int = 1
    paired: bool = False
    exact: bool = False
    probe: bool = False
    reset_urls: tuple[str, ...] = ()
    post_donor_delay_ms: float = 1000.0
    quality_threshold: float = 0.60
    tenant: str = "sembench"
    template: ServerTemplate = "completion"
    max_output_tokens: int = 64
    donor_output_tokens: int = 1
    block_size: int = 16
    capture_logprobs: bool = False
    connector_audit: str | None = None
    reuse_off: dict[str, Any] = dict(REUSE_OFF)
    warmup_requests: int = 1
    retries: int = 2
    timeout_s: float = 120.0
    serve_command: str | None = None
    seed: int = 0

    @property
    def arms(self) -> tuple[LiveArm, ...]:
        """In the order in which an item is served: cold before any of its donors exists."""
        wanted: dict[LiveArm, bool] = {"cold": self.paired, "exact": self.exact, "warm": True, "probe": self.probe}
        return tuple(arm for arm, there in wanted.items() if there)

    @property
    def workers(self) -> tuple[str, ...]:
        """The engines that hold the KV, where they are known apart from the gateway."""
        return tuple(dict.fromkeys(url for url in (self.worker_url, self.donor_url) if url)) or (self.url,)

    def endpoint(self, client: httpx.AsyncClient, url: str | None = None) -> Endpoint:
        # SGLang's own API knows no chat template; its OpenAI one does.
        common: dict[str, Any] = {"tenant": self.tenant, "timeout_s": self.timeout_s}
        if self.engine == "sglang" and self.template == "completion":
            return SGLangEndpoint(client, url or self.url, self.model, **common)
        return OpenAIEndpoint(client, url or self.url, self.model, template=self.template, seed=self.seed, **common)


def open_client(api_key: str | None, connections: int) -> httpx.AsyncClient:
    """One pool for the whole run. The key is sent and written nowhere."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=connections + 4, keepalive_expiry=60)
    return httpx.AsyncClient(headers=headers, limits=limits, follow_redirects=False)


def clean_url(option: str, value: str) -> str:
    """The server's root: without a trailing slash and without ``/v1``, which the paths bring themselves."""
    try:
        url = httpx.URL(value)
    except httpx.InvalidURL as error:
        raise InputError(f"{option} {value!r}: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise InputError(f"{option} {value!r}: needs the form http://host:port")
    if url.userinfo:
        raise InputError(f"{option}: holds credentials, which a result would publish; set {API_KEY_VARIABLE} instead")
    return value.rstrip("/").removesuffix("/v1").rstrip("/")
