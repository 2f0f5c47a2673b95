"""A result: who ran what, every request's record, and the figures made of them; and the noise floor beside it.

None always means *not measured*, never zero.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

RESULT_SCHEMA = "sembench.result.v1"

Arm = Literal["offline", "cold", "exact", "warm", "probe"]
"""cold: nothing to reuse, and proved so. exact: the same prompt again, from the engine's own prefix cache.
warm: donors were served before. probe: an approximately served prompt again, later, with reuse off."""
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RunIdentity(_Model):
    """What a reader needs to repeat the run."""

    kind: Literal["offline", "live-sglang", "live-gateway", "embedded", "load", "privacy", "noise-floor", "merged"]
    started_at: str
    """UTC, ISO 8601."""
    finished_at: str | None
    manifest: str | None
    manifest_sha256: str | None
    manifest_items: Count | None
    command: list[str]
    seed: int | None = None
    versions: dict[str, str]
    """Packages and Python."""
    host: dict[str, Any]
    """Platform, CPUs, device."""
    engine: dict[str, Any] = {}
    """Name, version, model, url: what the engine says of itself."""
    serve_command: str | None = None


class Rate(_Model):
    """A share that is printed with what it was made of."""

    value: float | None
    numerator: float | None
    denominator: float | None

    @classmethod
    def of(cls, numerator: float | None, denominator: float | None) -> Rate:
        known = numerator is not None and denominator
        return cls(value=numerator / denominator if known else None, numerator=numerator, denominator=denominator)  # type: ignore[operator]


class Interval(_Model):
    """A figure over clean pairs, with its 95% bootstrap interval."""

    value: float | None
    low: float | None = None
    high: float | None = None
    n: Count


class Quality(_Model):
    """One answer. The first four are against the manifest's answers, the others against the cold arm."""

    exact_match: Share | None = None
    f1: Share | None = None
    rouge_l: Share | None = None
    token_recall: Share | None = None
    passed: bool | None = None
    """The best of F1, ROUGE-L and token recall reached the run's quality threshold."""
    cold_rouge_l: Share | None = None
    """ROUGE-L of the warm answer against the cold one."""
    kl_mean: float | None = None
    kl_max: float | None = None
    ppl_ratio: float | None = None
    top1: Share | None = None
    judge: dict[str, Any] | None = None
    """What an LLM judge said, where one was asked."""


class RequestRecord(_Model):
    """One request in one arm."""

    item_id: str
    arm: Arm
    dataset: str
    transform: str
    negative_control: bool
    request_id: str | None = None
    """The one that was sent. Of a request that failed, the latest, which may be its donor's; None: nothing was sent."""
    status: Literal["ok", "error"] = "ok"
    error: str | None = None
    attempts: Count = 1

    prompt_tokens: Count | None = None
    total_blocks: Count | None = None
    exact_blocks: Count | None = None
    candidate_blocks: Count | None = None
    eligible_blocks: Count | None = None
    eligible_beyond_exact_blocks: Count | None = None
    """Eligible blocks that no full block of a donor equals: what the planner adds to an exact cache."""
    confirmed_blocks: Count | None = None
    """Floor of confirmed tokens by the block size, from the backend's own events."""

    exact_prefix_tokens: Count | None = None
    advertised_tokens: Count | None = None
    """What the planner handed to the backend."""
    confirmed_tokens: Count | None = None
    """What the backend said has landed; 0 only where its events cover the request and tell of none."""
    computed_tokens: Count | None = None
    spans: Count | None = None
    donors: Count | None = None
    outcome: str | None = None
    """materialized, alias, declined, exact_only, ... as the backend or provider says."""
    decline_reason: str | None = None
    lookup_us: float | None = None
    policy: str | None = None
    """What chose the tokens that were computed afresh, where the backend says so."""

    ttft_ms: float | None = None
    ttft_samples_ms: list[float] | None = None
    """Every measurement, where there were several; ``ttft_ms`` is their median."""
    latency_ms: float | None = None
    output_tokens: Count | None = None
    engine_cached_tokens: Count | None = None
    """The engine's own count: local and external hits together. No semantic evidence."""
    proved_cold: bool | None = None
    """Cold arm only: how is in ``cold_proof``."""
    cold_proof: str | None = None
    output: str | None = None
    output_logprobs: list[dict[str, Any]] | None = None
    """Log-probabilities of the output's tokens as the server gives them, where they were asked for."""
    quality: Quality = Quality()
    route: dict[str, str] = {}
    """Routing headers of the response, and Dynamo's `worker_id`."""
    donor_workers: list[str] = []
    """Where routers say that the item's donors were served."""


class Aggregate(_Model):
    """Over all items of the manifest, in the warm (or offline) arm."""

    items: Count
    arm: Arm | None = None
    """The arm that the figures are of: warm where there is one, else offline, exact, cold."""
    requests_ok: Count
    requests_failed: Count
    block_size: Count | None = None
    exact_block_hit_rate: Rate | None = None
    semantic_candidate_block_rate: Rate | None = None
    semantic_eligible_block_rate: Rate | None = None
    backend_confirmed_block_rate: Rate | None = None
    semantic_eligible_lift: float | None = None
    backend_confirmed_lift: float | None = None
    semantic_placement_rate_by_request: Rate | None = None
    """Requests that semantic placement routed, as route metadata tells."""
    semantic_eligible_rate_by_request: Rate | None = None
    """Requests with an eligible block beyond exact."""
    backend_confirmed_rate_by_request: Rate | None = None
    """Requests with at least one confirmed token."""
    negative_control_semantic_eligible_rate: Rate | None = None
    negative_control_backend_confirmed_rate: Rate | None = None
    negative_control_semantic_placement_rate: Rate | None = None
    negative_control_semantic_eligible_rate_by_request: Rate | None = None
    negative_control_backend_confirmed_rate_by_request: Rate | None = None
    materialized_reuse_rate: Rate | None = None
    propagation_contamination_rate: Rate | None = None
    materialization_events: Count | None = None
    materialized_tokens: Count | None = None
    quality_pass_rate: Rate | None = None
    exact_match: float | None = None
    f1: float | None = None
    rouge_l: float | None = None
    token_recall: float | None = None
    kl_mean: float | None = None
    kl_max: float | None = None
    ppl_ratio: float | None = None
    top1: float | None = None
    judge: dict[str, Any] | None = None
    outcomes: dict[str, Count] = {}
    decline_reasons: dict[str, Count] = {}
    lookup_us: dict[str, float] | None = None
    """p50, p99, max."""


class Paired(_Model):
    """Cold against warm, the same items in one run or in two that were merged."""

    clean_pairs: Count
    dropped: dict[str, Count] = {}
    """Why pairs were left out."""
    cold_ttft_ms_median: float | None = None
    warm_ttft_ms_median: float | None = None
    exact_ttft_ms_median: float | None = None
    blended_ttft_speedup_median: Interval | None = None
    """Over all clean pairs that are no negative controls: the headline."""
    hit_ttft_speedup_median: Interval | None = None
    """Over pairs with confirmed reuse only; means nothing without ``hit_rate``."""
    hit_rate: Rate | None = None
    negative_control_ttft_speedup_median: Interval | None = None
    miss_tax_ms: Interval | None = None
    warm_rouge_l: float | None = None
    cold_rouge_l: float | None = None
    noise_floor: dict[str, float | None] | None = None


class TransformSummary(_Model):
    aggregate: Aggregate
    paired: Paired | None = None


class Result(_Model):
    schema_version: Literal["sembench.result.v1"] = "sembench.result.v1"
    run: RunIdentity
    config: dict[str, Any]
    aggregate: Aggregate
    paired: Paired | None = None
    by_transform: dict[str, TransformSummary] = {}
    requests: list[RequestRecord] = []
    load: list[dict[str, Any]] | None = None
    """run-load only: one entry per concurrency or rate."""
    privacy: list[dict[str, Any]] | None = None
    """run-privacy only: one entry per transform and arm."""
    engine_window: dict[str, Any] | None = None


class Spread(_Model):
    """The distribution of one figure over ``n`` pairs; all None where there is no pair."""

    n: Count
    mean: float | None = None
    p5: float | None = None
    p50: float | None = None
    p95: float | None = None


class NoisePair(_Model):
    """The same prompt, served cold twice."""

    item_id: str
    rouge_l: Share
    """ROUGE-L of the two answers, one against the other."""
    exact_match: bool
    """The two answers are the same text."""
    ttft_ratio: float | None
    """The first serving's TTFT by the second's; None where one of them was not measured."""
    answer_score_difference: float | None
    """The first serving's best answer score minus the second's; None where the item has no answers."""


class NoiseFloor(_Model):
    """What ``assert-result-gates --noise-floor-calibration`` reads. Only proved-cold servings are in it."""

    schema_version: Literal["sembench.noise-floor.v1"] = "sembench.noise-floor.v1"
    run: RunIdentity
    config: dict[str, Any]
    items: Count
    """Items of the manifest that were to be served."""
    repeats: Annotated[int, Field(ge=2)]
    rouge_l: Spread
    exact_match: Rate
    """Pairs whose answers are the same text, of all pairs."""
    ttft_ratio: Spread
    answer_score_difference: Spread
    dropped: dict[str, Count] = {}
    """Servings that did not count, by reason."""
    pairs: list[NoisePair] = []
