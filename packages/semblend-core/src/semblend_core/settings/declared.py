"""Every setting of SemBlend, declared once: name, default, allowed values, unit and meaning."""

# ruff: noqa: RUF009 - the calls in the defaults are dataclasses.field, with its metadata

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias, get_args

from semblend_core.settings.declaration import Declaration
from semblend_core.settings.environment import read_environment
from semblend_core.settings.errors import SettingError, WrongSetting
from semblend_core.settings.kinds import (
    ByteSize,
    Choice,
    Flag,
    Kind,
    NotAllowedError,
    Number,
    Text,
    Unset,
    Whole,
)

Embedder: TypeAlias = Literal["minilm", "jaccard", "none"]
EmbedProvider: TypeAlias = Literal["auto", "cpu", "cuda"]
QualityTier: TypeAlias = Literal["fast", "balanced", "strict"]
Eviction: TypeAlias = Literal["lru", "lfu"]
Capture: TypeAlias = Literal["all", "sampled", "hinted"]


def _setting(group: str, default: Any, kind: Kind, doc: str, *, unit: str = "") -> Any:
    return field(default=default, metadata={"group": group, "kind": kind, "doc": doc, "unit": unit})


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """All settings, checked. Build it with ``from_env`` at start-up, or with keywords: both refuse alike.

    Immutable and picklable, so it can be handed to worker processes instead of being read twice.
    """

    enabled: bool = _setting(
        "switches",
        True,
        Flag(),
        "Look for reusable spans at all; off, every request is served as if SemBlend were absent.",
    )
    discovery_only: bool = _setting("switches", False, Flag(), "Find and report reusable spans, load none of them.")

    min_similarity: float = _setting(
        "similarity",
        0.60,
        Number(0, 1),
        "Least similarity at which a donor counts as evidence for routing and search.",
    )
    embedder: Embedder = _setting(
        "similarity",
        "minilm",
        Choice(get_args(Embedder)),
        "What measures similarity: a MiniLM model, the overlap of token sets, or nothing.",
    )
    fuzzy_chunks: bool = _setting(
        "similarity", False, Flag(), "Search donors with small edits too; what is loaded stays token-exact."
    )
    embed_model: str = _setting(
        "similarity",
        "",
        Text("folder with `model.onnx` and `tokenizer.json`, or an installed package's name"),
        "Where the embedding model is; empty: found automatically.",
    )
    embed_provider: EmbedProvider = _setting(
        "similarity", "auto", Choice(get_args(EmbedProvider)), "Where the embedding model runs."
    )
    embed_queue: int = _setting(
        "similarity",
        256,
        Whole(1),
        "Prompts that may wait for embedding; further ones go without.",
        unit="prompts",
    )
    ann_threshold: int = _setting(
        "similarity",
        4096,
        Whole(1),
        "Donors above which approximate nearest neighbours replace the exact search.",
        unit="donors",
    )

    quality_tier: QualityTier = _setting(
        "planning",
        "balanced",
        Choice(get_args(QualityTier)),
        "How much of a span is computed afresh: its seams, also what the question attends to, "
        "or that plus declining what cannot be held to it.",
    )
    recompute_limit: float | None = _setting(
        "planning",
        None,
        Unset(Number(0, 1)),
        "Most of the reused tokens that a quality tier may compute afresh; unset: what the tier was measured with.",
    )
    min_span_tokens: int = _setting("planning", 64, Whole(16, 65536), "Shortest span worth moving.", unit="tokens")
    min_reuse_ratio: float = _setting(
        "planning", 0.10, Number(0, 1), "Least share of the prompt that a plan must reuse."
    )
    min_saved_tokens: int = _setting(
        "planning", 128, Whole(1), "Fewest tokens that a plan must spare the engine.", unit="tokens"
    )
    max_spans: int = _setting("planning", 512, Whole(1, 4096), "Most spans of one plan.", unit="spans")
    lookup_budget_ms: float = _setting(
        "planning",
        5.0,
        Number(0, low_excluded=True),
        "Time one lookup may take; past it the lookup is abandoned and the request prefilled normally.",
        unit="ms",
    )
    pin_ttl_s: float = _setting(
        "planning",
        300.0,
        Number(0, low_excluded=True),
        "A plan whose outcome is never reported loses its hold on its donors after this.",
        unit="s",
    )

    capture: Capture = _setting(
        "donors",
        "all",
        Choice(get_args(Capture)),
        "Which served prompts are kept as donors: all, a sample (`SEMBLEND_CAPTURE_SHARE`), "
        "or those whose request asks for it.",
    )
    capture_share: float = _setting(
        "donors", 0.1, Number(0, 1), "Share of the prompts that `SEMBLEND_CAPTURE=sampled` keeps."
    )
    max_donors: int = _setting("donors", 100_000, Whole(1), "Most donors kept.", unit="donors")
    donor_index_bytes: int = _setting(
        "donors", 4 * 1024**3, ByteSize(), "Host memory for the donors' tokens and their index."
    )
    eviction: Eviction = _setting(
        "donors",
        "lru",
        Choice(get_args(Eviction)),
        "Who goes first when a budget is full: the least recently or the least often used donor.",
    )

    store_device_bytes: int = _setting(
        "store", 0, ByteSize(0), "Donor KV kept in the engine's own memory, beside its cache; 0: none."
    )
    store_host_bytes: int = _setting(
        "store",
        4 * 1024**3,
        ByteSize(0),
        "Donor KV kept in pinned host memory, for each tensor-parallel rank; 0: none.",
    )
    store_disk_bytes: int = _setting("store", 0, ByteSize(0), "Donor KV kept on disk; 0: none.")
    store_disk_path: str = _setting(
        "store",
        "",
        Text("folder, in which `{rank}` stands for the tensor-parallel rank"),
        "Folder of the disk tier, for one process alone.",
    )
    store_queue_bytes: int = _setting(
        "store",
        4 * 1024**3,
        ByteSize(1),
        "Donor KV that may wait to be copied into a tier; it lies in the engine's own memory, beside its cache.",
    )
    store_promote: bool = _setting(
        "store", False, Flag(), "Copy a donor into the next faster tier after its use, in the background."
    )

    cost_gate: bool = _setting(
        "cost",
        True,
        Flag(),
        "Decline plans that would not be faster than a normal prefill by `SEMBLEND_MIN_GAIN_US`.",
    )
    prefill_us_per_token: float | None = _setting(
        "cost",
        None,
        Unset(Number(0, low_excluded=True)),
        "Measured time to prefill one token; unset: not calibrated.",
        unit="us",
    )
    copy_us_per_token: float | None = _setting(
        "cost",
        None,
        Unset(Number(0)),
        "Measured time to relocate one token's KV; unset: not calibrated.",
        unit="us",
    )
    reuse_overhead_us: float | None = _setting(
        "cost",
        None,
        Unset(Number(0)),
        "Measured fixed time of a request with reuse; unset: left out of the estimate.",
        unit="us",
    )
    recompute_share: float | None = _setting(
        "cost",
        None,
        Unset(Number(0, 1)),
        "Share of the reused tokens that a recompute policy will compute after all; unset: left out of the estimate.",
    )
    min_gain_us: float = _setting("cost", 0.0, Number(0), "A plan must be estimated to save more than this.", unit="us")

    audit_path: str = _setting(
        "audit",
        "",
        Text("file path, in which `{pid}` stands for the process id"),
        "Where the audit stream is written; empty: nowhere.",
    )
    audit_max_bytes: int = _setting("audit", 64 * 1024**2, ByteSize(4096), "Size at which the audit file is rotated.")
    audit_backups: int = _setting(
        "audit", 3, Whole(0, 100), "Rotated audit files kept beside the current one.", unit="files"
    )
    audit_queue: int = _setting(
        "audit",
        8192,
        Whole(1),
        "Audit records that may wait for the disk; further ones are dropped and counted.",
        unit="records",
    )

    def __post_init__(self) -> None:
        wrong: list[WrongSetting] = []
        for declared in declarations():
            value = getattr(self, declared.field)
            try:
                object.__setattr__(self, declared.field, declared.kind.check(value))
            except NotAllowedError as refusal:
                wrong.append(WrongSetting(declared.variable, value, declared.kind.allowed, str(refusal)))
        if wrong:
            raise SettingError(wrong)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ, *, also_known: Collection[str] = ()) -> Settings:
        """Read the ``SEMBLEND_*`` variables of ``environ``; an empty one counts as unset.

        All wrong values are named in one SettingError. An unknown ``SEMBLEND_*`` variable is logged with the
        nearest known name; ``also_known`` lists those that the caller reads itself.
        """
        return cls(**read_environment(environ, declarations(), also_known))

    def changed(self) -> dict[str, Any]:
        """The settings that differ from their defaults, by field name."""
        return {d.field: getattr(self, d.field) for d in declarations() if getattr(self, d.field) != d.default}

    def describe(self) -> str:
        """One line for the start-up log: what differs from the defaults."""
        changed = self.changed()
        shown = [f"{d.variable}={d.kind.show(changed[d.field])}" for d in declarations() if d.field in changed]
        return f"SemBlend settings: {' '.join(shown) or 'all at their defaults'}" + (
            " (others default)" if shown else ""
        )


def declarations() -> tuple[Declaration, ...]:
    """Every setting, in the order of declaration."""
    return _DECLARATIONS


_DECLARATIONS = tuple(Declaration(f.name, f.default, **f.metadata) for f in fields(Settings))
