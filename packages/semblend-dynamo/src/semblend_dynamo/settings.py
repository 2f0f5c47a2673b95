"""The settings of evidence."""

# ruff: noqa: RUF009 - the calls in the defaults are dataclasses.field, with its metadata

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

from semblend_core.settings import Choice, DeclaredSettings, Number, Text, Whole, setting

EmbedderName: TypeAlias = Literal["minilm", "jaccard", "none"]
EmbedProvider: TypeAlias = Literal["auto", "cpu", "cuda"]


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
        "evidence", "auto", Choice(get_args(EmbedProvider)), "Where the embedding model runs."
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
