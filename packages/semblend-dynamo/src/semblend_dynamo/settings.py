"""The settings of evidence."""

# ruff: noqa: RUF009 - the calls in the defaults are dataclasses.field, with its metadata

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self, TypeAlias, get_args

from semblend_core.settings import Choice, DeclaredSettings, Number, Text, Whole, setting

EmbedderName: TypeAlias = Literal["minilm", "jaccard", "none"]
EmbedProvider: TypeAlias = Literal["auto", "cpu", "cuda"]
MINILM_ON_GPU = ("onnx_gpu", "onnx-gpu", "onnxgpu")
"""What the public package ``semblend`` calls MiniLM on a GPU: here the embedder and where it runs are two settings."""


@dataclass(frozen=True, kw_only=True)
class EvidenceSettings(DeclaredSettings):
    PREFIX: ClassVar[str] = "SEMBLEND_"
    GROUPS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "evidence": (
            "Evidence (semblend-dynamo)",
            "How similar earlier requests are found. Similarity routes requests and never licenses a load: no engine\n"
            "reads these. See [evidence](evidence.md).",
        ),
    }

    min_similarity: float = setting(
        "evidence", 0.60, Number(0, 1), "Least similarity at which a donor counts as evidence."
    )
    embedder: EmbedderName = setting(
        "evidence",
        "minilm",
        Choice(get_args(EmbedderName)),
        "What measures similarity: a MiniLM model, the overlap of token sets, or nothing.",
    )
    embed_model: str = setting(
        "evidence",
        "",
        Text("folder with `model.onnx` and `tokenizer.json`, or an installed package's name"),
        "Where the embedding model is; empty: found automatically.",
    )
    embed_provider: EmbedProvider = setting(
        "evidence",
        "auto",
        Choice(get_args(EmbedProvider)),
        "Where the embedding model runs.",
        formerly="SEMBLEND_EMBED_DEVICE",
    )
    embed_queue: int = setting(
        "evidence", 256, Whole(1), "Prompts that may wait for embedding; further ones go without.", unit="prompts"
    )
    ann_threshold: int = setting(
        "evidence",
        4096,
        Whole(1),
        "Donors above which approximate nearest neighbours replace the exact search.",
        unit="donors",
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """As everywhere; beyond that, ``SEMBLEND_EMBEDDER=onnx_gpu`` is ``minilm`` on ``cuda``."""
        embedder, provider = cls.variable("embedder"), cls.variable("embed_provider")
        if environ.get(embedder, "").strip().lower() in MINILM_ON_GPU:
            environ = {**environ, embedder: "minilm", provider: environ.get(provider, "").strip() or "cuda"}
        return super().from_env(environ)
