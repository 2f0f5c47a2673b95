"""The settings of semblend-proxy. The published names of SemanticKV are read too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from semblend_core.settings import ByteSize, DeclaredSettings, Flag, Number, Text, Whole, setting


@dataclass(frozen=True, kw_only=True)
class ProxySettings(DeclaredSettings):
    PREFIX: ClassVar[str] = "SEMBLEND_PROXY_"
    GROUPS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "proxy": (
            "Telemetry proxy (semblend-dynamo)",
            "`semblend-proxy` in front of one server. See [routing](routing.md#telemetry-proxy). The names\n"
            "`SEMANTICKV_UPSTREAM_BASE_URL`, `SEMANTICKV_TRACE_OUTPUT_DIR`, `SEMANTICKV_REDACT_TEXT` and\n"
            "`SEMANTICKV_PROXY_TIMEOUT_SECONDS` are read where ours are not set.",
        ),
    }

    upstream: str = setting(
        "proxy",
        "",
        Text("`http://host:port`"),
        "The server that requests are passed on to.",
        formerly="SEMANTICKV_UPSTREAM_BASE_URL",
    )
    trace_dir: str = setting(
        "proxy",
        "outputs/live_traces",
        Text("a folder"),
        "Where traces are written, one file for each run; it is made, for its owner alone.",
        formerly="SEMANTICKV_TRACE_OUTPUT_DIR",
    )
    redact: bool = setting(
        "proxy",
        True,
        Flag(),
        "Whether traces hold hashes, counts and types only, and no text.",
        formerly="SEMANTICKV_REDACT_TEXT",
    )
    hash_key_file: str = setting(
        "proxy",
        "",
        Text("a file"),
        "A secret that hashes in traces are made with; empty: plain hashes, against which a guess can be tested.",
    )
    timeout_s: float = setting(
        "proxy",
        600.0,
        Number(0, low_excluded=True),
        "Longest time for a request as a whole.",
        unit="s",
        formerly="SEMANTICKV_PROXY_TIMEOUT_SECONDS",
    )
    max_body: int = setting("proxy", 32 << 20, ByteSize(), "Largest body of a request.")
    trace_bytes: int = setting(
        "proxy", 1 << 30, ByteSize(), "Largest trace of one run; requests beyond it are served and not traced."
    )
    host: str = setting("proxy", "127.0.0.1", Text("an address of this machine"), "Where it listens.")
    port: int = setting("proxy", 8010, Whole(0, 65535), "Where it listens; 0: any free port.")
