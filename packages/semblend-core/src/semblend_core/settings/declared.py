"""Every setting of core, declared once: name, default, allowed values, unit and meaning."""

# ruff: noqa: RUF009 - the calls in the defaults are dataclasses.field, with its metadata

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

from semblend_core.eviction import POLICY_NAMES
from semblend_core.settings.declaring import DeclaredSettings, read_environment, setting
from semblend_core.settings.installed import warn_of_unknown
from semblend_core.settings.kinds import ByteSize, Choice, Flag, Never, Number, TenantIds, Text, Unset, Whole

QualityTier: TypeAlias = Literal["fast", "balanced", "strict"]
Probe: TypeAlias = Literal["auto", "never"]
Sharing: TypeAlias = Literal["salted", "all"]
CachedTokens: TypeAlias = Literal["rounded", "left_out", "exact"]
Capture: TypeAlias = Literal["all", "sampled", "hinted"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(DeclaredSettings):
    """Core's settings, checked. Immutable and picklable: workers are handed them instead of reading them twice."""

    PREFIX: ClassVar[str] = "SEMBLEND_"
    GROUPS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "switches": ("Switches", "What SemBlend may do at all."),
        "sharing": (
            "Sharing",
            "Who may use whose KV, and who can tell. See [security](security.md).",
        ),
        "planning": ("Planning", "When a finding becomes a plan, and how much of it is computed afresh."),
        "donors": ("Donors", "How many finished requests are remembered, and who goes first."),
        "store": ("Donor store", "Where donors' KV is kept, and how much of it. See [donor store](donor-store.md)."),
        "tenants": (
            "Tenants",
            "What one tenant may hold, where and for how long, and how an operator purges it. "
            "See [tenants](tenants.md).",
        ),
        "cost": (
            "Cost gate",
            "When reuse pays. The engine's own steps tell; both times per token, where set, overrule them. "
            "See [costs](costs.md).",
        ),
        "quality": (
            "Live guard",
            "Served answers compared with cold ones, while the engine has room. See [quality](quality.md#live-guard).",
        ),
        "audit": (
            "Audit stream",
            "The record of what happened, one JSON object per line. See [telemetry](telemetry.md).",
        ),
    }

    enabled: bool = setting(
        "switches",
        True,
        Flag(),
        "Look for reusable spans at all; off, every request is served as if SemBlend were absent.",
    )
    discovery_only: bool = setting("switches", False, Flag(), "Find and report reusable spans, load none of them.")

    sharing: Sharing = setting(
        "sharing",
        "salted",
        Choice(get_args(Sharing)),
        "Who shares donors: requests with the same cache salt, each salt apart, and none without one; or also all "
        "requests without a salt among themselves, where every client of the server trusts every other.",
    )
    cached_tokens: CachedTokens = setting(
        "sharing",
        "rounded",
        Choice(get_args(CachedTokens)),
        "How a client sees relocated tokens in `cached_tokens`: rounded down to blocks of 64, not at all, or to the "
        "token, which tells how far another's prompt agrees with a guess.",
    )

    fuzzy_chunks: bool = setting(
        "planning", False, Flag(), "Search donors with small edits too; what is loaded stays token-exact."
    )
    quality_tier: QualityTier = setting(
        "planning",
        "balanced",
        Choice(get_args(QualityTier)),
        "How much of a span is computed afresh: its seams, also what the question attends to, "
        "or that plus declining what cannot be held to it.",
    )
    recompute_limit: float | None = setting(
        "planning",
        None,
        Unset(Number(0, 1)),
        "Most of the reused tokens that a quality tier may compute afresh; unset: what the tier was measured with.",
    )
    probe: Probe = setting(
        "planning",
        "auto",
        Choice(get_args(Probe)),
        "Whether a first small step may look where the question looks, so that a tier computes that afresh: where it "
        "pays, or never.",
    )
    corrections_dir: str = setting(
        "planning",
        "",
        Text("folder, or `none`"),
        "Where corrections that were fitted for a model are looked for; empty: `semblend/corrections` in "
        "`XDG_CACHE_HOME` or `~/.cache`.",
    )
    min_span_tokens: int = setting(
        "planning",
        64,
        Whole(16, 65536),
        "Shortest span worth moving.",
        unit="tokens",
        formerly="SEMBLEND_EXACT_RUN_MIN_TOKENS",
    )
    min_reuse_ratio: float = setting(
        "planning", 0.10, Number(0, 1), "Least share of the prompt that a plan must reuse."
    )
    min_saved_tokens: int = setting(
        "planning", 128, Whole(1), "Fewest tokens that a plan must spare the engine.", unit="tokens"
    )
    max_spans: int = setting(
        "planning",
        512,
        Whole(1, 4096),
        "Most spans of one plan.",
        unit="spans",
        formerly="SEMBLEND_EXACT_RUN_MAX_SEGMENTS",
    )
    lookup_budget_ms: float = setting(
        "planning",
        5.0,
        Number(0, low_excluded=True),
        "Time one lookup may take for every 16,384 tokens of its prompt or part of them; "
        "past it the lookup is abandoned and the request prefilled normally.",
        unit="ms",
    )
    pin_ttl_s: float = setting(
        "planning",
        300.0,
        Number(0, low_excluded=True),
        "A plan whose outcome is never reported loses its hold on its donors after this.",
        unit="s",
    )

    exact_after: int | None = setting(
        "planning",
        3,
        Never(Whole(2)),
        "The how-maniest request for one opening, conversations that go on not counted, has the opening computed "
        "exactly, in the background while the engine has nothing else to do.",
        unit="requests",
    )

    capture: Capture = setting(
        "donors",
        "all",
        Choice(get_args(Capture)),
        "Which served prompts are kept as donors: all, a sample (`SEMBLEND_CAPTURE_SHARE`), "
        "or those whose request asks for it. A request can always ask not to be kept.",
    )
    capture_share: float = setting(
        "donors", 0.1, Number(0, 1), "Share of the prompts that `SEMBLEND_CAPTURE=sampled` keeps."
    )
    max_donors: int = setting("donors", 100_000, Whole(1), "Most donors kept.", unit="donors")
    donor_index_bytes: int = setting(
        "donors", 4 * 1024**3, ByteSize(), "Host memory for the donors' tokens and their index."
    )
    eviction: str = setting(
        "donors",
        "priced_lru",
        Choice(POLICY_NAMES),
        "Who goes first when a budget is full, of the donors' index or of the KV kept: see [eviction](eviction.md).",
    )

    store_device_bytes: int = setting(
        "store", 0, ByteSize(0), "Donor KV kept in the engine's own memory, beside its cache; 0: none."
    )
    store_host_bytes: int = setting(
        "store",
        4 * 1024**3,
        ByteSize(0),
        "Donor KV kept in pinned host memory, for each tensor-parallel rank; 0: none.",
    )
    store_disk_bytes: int = setting("store", 0, ByteSize(0), "Donor KV kept on disk; 0: none.")
    store_disk_path: str = setting(
        "store",
        "",
        Text("folder, in which `{rank}` stands for the tensor-parallel rank"),
        "Folder of the disk tier, for one engine alone; of several ranks or replicas each takes a folder in it.",
    )
    store_lmcache_bytes: int = setting(
        "store", 0, ByteSize(0), "Donor KV kept by [LMCache](lmcache.md), for each tensor-parallel rank; 0: none."
    )
    store_lmcache_url: str = setting(
        "store",
        "",
        Text("`lm://host:port` or `redis://host:port`"),
        "Server behind LMCache; empty: memory of the engine's process.",
    )
    store_lmcache_path: str = setting(
        "store",
        "",
        Text("folder, in which `{rank}` stands for the tensor-parallel rank"),
        "Lists what LMCache holds, so that later processes find it. Several may share it; empty: none do.",
    )
    store_queue_bytes: int = setting(
        "store",
        4 * 1024**3,
        ByteSize(1),
        "Donor KV that may wait to be copied into a tier; it lies in the engine's own memory, beside its cache.",
    )
    store_promote: bool = setting(
        "store", False, Flag(), "Copy a donor into the next faster tier after its use, in the background."
    )

    max_age_s: float | None = setting(
        "tenants",
        None,
        Unset(Number(0, low_excluded=True)),
        "Donors older than this are never served, and dropped in every tier; unset: no age is too great.",
        unit="s",
    )
    tenant_tokens: int | None = setting(
        "tenants",
        None,
        Unset(Whole(1)),
        "Most tokens that the donors of one tenant may have; its own oldest make room; unset: no limit of its own.",
        unit="tokens",
    )
    memory_only: tuple[str, ...] = setting(
        "tenants", (), TenantIds(), "Tenants whose donors are never kept on disk; those found there are deleted."
    )
    control_dir: str = setting(
        "tenants",
        "",
        Text("folder"),
        "Folder of the sockets by which an operator shows or purges a tenant; empty: none.",
    )

    cost_gate: bool = setting(
        "cost",
        True,
        Flag(),
        "Decline what would not be faster than a normal prefill by `SEMBLEND_MIN_GAIN_US`; off, every plan is taken.",
    )
    cost_dir: str = setting(
        "cost",
        "",
        Text("folder, or `none`"),
        "Where learned costs are kept for the next start; empty: `semblend/costs` in `XDG_CACHE_HOME` or `~/.cache`.",
    )
    prefill_us_per_token: float | None = setting(
        "cost",
        None,
        Unset(Number(0, low_excluded=True)),
        "Time to prefill one token, in place of learned costs; unset: learned.",
        unit="us",
    )
    copy_us_per_token: float | None = setting(
        "cost",
        None,
        Unset(Number(0)),
        "Time to relocate one token's KV, in place of learned costs; unset: learned.",
        unit="us",
    )
    reuse_overhead_us: float | None = setting(
        "cost",
        None,
        Unset(Number(0)),
        "Fixed time of a request with reuse, beside the two above; unset: left out of the estimate.",
        unit="us",
    )
    recompute_share: float | None = setting(
        "cost",
        None,
        Unset(Number(0, 1)),
        "Share of the reused tokens that a recompute policy will compute after all; unset: left out of the estimate.",
    )
    min_gain_us: float = setting("cost", 0.0, Number(0), "A plan must be estimated to save more than this.", unit="us")

    quality_share: float = setting(
        "quality",
        0.005,
        Number(0, 1),
        "Share of the requests with reuse that are computed cold too, in the background, and compared; 0: none.",
    )
    quality_target: float = setting(
        "quality",
        0.9,
        Number(0, 1),
        "Least agreement with cold answers (share of positions with the same likeliest token), held for each kind of "
        "plan: by spending more, then by declining; 0: it is measured, and nothing is done.",
    )

    audit_path: str = setting(
        "audit",
        "",
        Text("file path, in which `{pid}` stands for the process id"),
        "Where the audit stream is written, such as `/dev/stdout` for the engine's own log; empty: nowhere.",
    )
    audit_max_bytes: int = setting("audit", 64 * 1024**2, ByteSize(4096), "Size at which the audit file is rotated.")
    audit_backups: int = setting(
        "audit", 3, Whole(0, 100), "Rotated audit files kept beside the current one.", unit="files"
    )
    audit_queue: int = setting(
        "audit",
        8192,
        Whole(1),
        "Audit records that may wait for the disk; further ones are dropped and counted.",
        unit="records",
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """As everywhere; beyond that, ``SEMBLEND_*`` variables that no installed package declares are logged."""
        warn_of_unknown(environ, cls)
        return cls(**read_environment(environ, cls.declarations()))
