"""The settings that only this adapter has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from semblend_core.settings import DeclaredSettings, Flag, Text, setting


@dataclass(frozen=True, kw_only=True)
class VllmSettings(DeclaredSettings):
    PREFIX: ClassVar[str] = "SEMBLEND_VLLM_"
    GROUPS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "vllm": (
            "vLLM (semblend-vllm)",
            "Beside the settings above, the vLLM adapter reads these. See [vLLM](vllm.md).",
        ),
    }

    provider: str = setting(
        "vllm",
        "",
        Text("`package.module:callable`"),
        "What makes the [provider](providers.md); empty: SemBlend's own.",
    )
    force_version: bool = setting(
        "vllm", False, Flag(), "Run with a vLLM that the adapter was never tested with, at your own risk."
    )
    control_token_file: str = setting(
        "vllm",
        "",
        Text("file of mode 0600"),
        "Holds the token with which an operator may use the [HTTP routes](tenants.md#over-http); empty: no routes.",
    )
