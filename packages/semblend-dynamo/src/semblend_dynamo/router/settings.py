"""The settings of semblend-router. The published names of SemanticKV are read too."""

# ruff: noqa: RUF009 - the calls in the defaults are dataclasses.field, with its metadata

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

from semblend_core.settings import ByteSize, Choice, DeclaredSettings, Flag, Number, Text, Whole, setting
from semblend_dynamo.gateway.identity import SaltField, SaltRule

PolicyName: TypeAlias = Literal["round_robin", "least_loaded", "prefix_hash", "semantic_locality"]


@dataclass(frozen=True, kw_only=True)
class RouterSettings(DeclaredSettings):
    PREFIX: ClassVar[str] = "SEMBLEND_ROUTER_"
    GROUPS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "router": (
            "Router (semblend-dynamo)",
            "`semblend-router` in front of replicas or of a gateway. See [routing](routing.md). `SEMANTICKV_REPLICAS`\n"
            "and `SEMANTICKV_ROUTING_POLICY` are read where the first two of their kind are not set.",
        ),
        "router_limits": ("Router: limits", "Every limit has an answer of its own: [routing](routing.md#limits)."),
        "router_tenants": (
            "Router: tenants",
            "Whose prompts may be found again by whom. See [routing](routing.md#tenants) and [security](security.md).",
        ),
    }

    replicas: str = setting(
        "router",
        "",
        Text("addresses separated by commas, each `http://host:port` or `name=http://host:port`"),
        "The replicas to choose from.",
        formerly="SEMANTICKV_REPLICAS",
    )
    gateway: str = setting(
        "router",
        "",
        Text("`http://host:port`"),
        "An smg gateway in front of the replicas; it then says which there are.",
    )
    policy: PolicyName = setting(
        "router",
        "semantic_locality",
        Choice(get_args(PolicyName)),
        "How a replica is chosen.",
        formerly="SEMANTICKV_ROUTING_POLICY",
    )
    host: str = setting("router", "127.0.0.1", Text("an address of this machine"), "Where it listens.")
    port: int = setting("router", 8020, Whole(0, 65535), "Where it listens; 0: any free port.")
    sessions: int = setting(
        "router",
        10_000,
        Whole(0),
        "Most sessions (`X-Session-ID`) that stay with their replica; 0: none do.",
        unit="sessions",
    )
    tokenizer: str = setting(
        "router",
        "",
        Text("a `tokenizer.json`, or a folder with one"),
        "The model's tokenizer; empty: prompts are compared by words.",
    )
    type_weights: str = setting(
        "router",
        "",
        Text("such as `system=2.4,user=0.7`"),
        "What a token counts for by the type of its block, where that differs from the built-in weights.",
    )
    likeness: bool = setting(
        "router",
        False,
        Flag(),
        "Whether a prompt that shares no tokens with earlier ones is sent where one lies that reads alike, as "
        "`SEMBLEND_EMBEDDER` measures it.",
    )
    cache_tokens: int = setting(
        "router",
        1_000_000,
        Whole(1),
        "About how many tokens of KV a replica holds: older prompts are taken to be gone.",
        unit="tokens",
    )
    decisions: int = setting(
        "router", 200, Whole(1, 10_000), "Decisions that the status page remembers.", unit="decisions"
    )

    max_body: int = setting("router_limits", 32 << 20, ByteSize(), "Largest body of a request.")
    body_memory: int = setting("router_limits", 512 << 20, ByteSize(), "Largest sum of the bodies held at once.")
    body_timeout_s: float = setting(
        "router_limits", 30.0, Number(0, low_excluded=True), "How long a body may take to arrive.", unit="s"
    )
    connect_timeout_s: float = setting(
        "router_limits", 2.0, Number(0, low_excluded=True), "How long a connection to a replica may take.", unit="s"
    )
    first_byte_timeout_s: float = setting(
        "router_limits",
        120.0,
        Number(0, low_excluded=True),
        "How long a replica may take to the first byte of a stream, before another is asked.",
        unit="s",
    )
    whole_answer_timeout_s: float = setting(
        "router_limits",
        300.0,
        Number(0, low_excluded=True),
        "How long a replica may take for an answer that is no stream, before another is asked.",
        unit="s",
    )
    stall_timeout_s: float = setting(
        "router_limits",
        60.0,
        Number(0, low_excluded=True),
        "Longest pause inside an answer, on either side.",
        unit="s",
    )
    timeout_s: float = setting(
        "router_limits", 600.0, Number(0, low_excluded=True), "Longest time for a request as a whole.", unit="s"
    )
    replica_in_flight: int = setting(
        "router_limits", 256, Whole(1), "Most requests at one replica at once; further ones wait.", unit="requests"
    )
    queue: int = setting(
        "router_limits", 1024, Whole(0), "Most requests that wait; further ones are answered 429.", unit="requests"
    )
    queue_timeout_s: float = setting(
        "router_limits", 10.0, Number(0, low_excluded=True), "How long a request may wait, before a 429.", unit="s"
    )
    probe_interval_s: float = setting(
        "router_limits", 5.0, Number(0, low_excluded=True), "Time between two health probes of a replica.", unit="s"
    )
    probe_path: str = setting(
        "router_limits", "/health", Text("a path"), "What a health probe asks a replica for; status 200 is healthy."
    )
    breaker_failures: int = setting(
        "router_limits", 3, Whole(1), "Failures in a row after which a replica is left alone.", unit="failures"
    )
    breaker_open_s: float = setting(
        "router_limits",
        10.0,
        Number(0, low_excluded=True),
        "How long it is left alone, before one request tries it again.",
        unit="s",
    )

    salt: SaltRule = setting(
        "router_tenants",
        "pass",
        Choice(get_args(SaltRule)),
        "The salt that a replica is sent: the client's own, one made of the tenant's name, one made of the API key, or "
        "none.",
    )
    salt_key_file: str = setting(
        "router_tenants", "", Text("a file"), "The secret that salts are made with; needed for `tenant` and `api_key`."
    )
    salt_field: SaltField = setting(
        "router_tenants",
        "cache_salt",
        Choice(get_args(SaltField)),
        "The body's field for the salt: `extra_key` for SGLang 0.5.17.",
    )
    tenant_header: str = setting(
        "router_tenants", "x-tenant-id", Text("a header's name"), "The header that names the tenant."
    )
    route_headers: bool = setting(
        "router_tenants", True, Flag(), "Whether answers say which replica served them, and why it was chosen."
    )
    operator_token_file: str = setting(
        "router_tenants",
        "",
        Text("a file"),
        "A token without which the status page, `/v1/replicas` and `/metrics` are refused; empty: all may see them.",
    )
