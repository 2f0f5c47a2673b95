"""The settings that only this adapter has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from semblend_core.settings import DeclaredSettings, Flag, Text, setting


@dataclass(frozen=True, kw_only=True)
class SglangSettings(DeclaredSettings):
    PREFIX: ClassVar[str] = "SEMBLEND_SGLANG_"
    GROUPS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "sglang": (
            "SGLang (semblend-sglang)",
            "Beside the settings above, the SGLang adapter reads these. See [SGLang](sglang.md).",
        ),
    }

    keep_donors: bool = setting(
        "sglang", False, Flag(), "Keep donors' KV in the donor store too, within the `SEMBLEND_STORE_*` budgets."
    )
    provider: str = setting(
        "sglang",
        "",
        Text("`package.module:callable`"),
        "What makes the [provider](providers.md); empty: SemBlend's own.",
    )
    replay_rows: bool = setting(
        "sglang",
        True,
        Flag(),
        "Prefills with reuse replay SGLang's [captured graphs](sglang.md#attention-and-graphs); `0`: they run eagerly.",
    )
    force_version: bool = setting(
        "sglang", False, Flag(), "Run with an SGLang that the adapter does not know, at your own risk."
    )
