"""The settings that only this adapter has."""

# ruff: noqa: RUF009 - the calls in the defaults are dataclasses.field, with its metadata

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

from semblend_core.settings import ByteSize, Choice, DeclaredSettings, Flag, Text, setting

LayoutChoice: TypeAlias = Literal["auto", "nhd", "hnd"]


@dataclass(frozen=True, kw_only=True)
class TrtllmSettings(DeclaredSettings):
    PREFIX: ClassVar[str] = "SEMBLEND_TRTLLM_"
    GROUPS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "trtllm": (
            "TensorRT-LLM (semblend-trtllm)",
            "Beside the settings above, the TensorRT-LLM adapter reads these. See [TensorRT-LLM](trtllm.md).",
        ),
    }

    kv_layout: LayoutChoice = setting(
        "trtllm",
        "auto",
        Choice(get_args(LayoutChoice)),
        "How the attention backend lays out a page: tokens then heads (nhd), or heads then tokens (hnd); auto goes by "
        "the backend.",
    )
    staging_bytes: int = setting(
        "trtllm",
        1024**3,
        ByteSize(),
        "Device memory for KV that is promised to the engine and not in its pages yet; longer prefixes are cut.",
    )
    provider: str = setting(
        "trtllm",
        "",
        Text("`package.module:callable`"),
        "What makes the [provider](providers.md); empty: SemBlend's own.",
    )
    force_version: bool = setting(
        "trtllm", False, Flag(), "Run with a TensorRT-LLM that the adapter does not know, at your own risk."
    )
