"""What a run of the laboratory found, as a typed document with a JSON Schema."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from sembench.laboratory.belady import Bound
from sembench.laboratory.tally import Tally
from sembench.schema import Interval
from sembench.statistics import bootstrap_mean

LABORATORY_SCHEMA = "sembench.laboratory.v1"
BASELINE = "lru"
BELADY = "belady"


class RunFigures(BaseModel):
    """One policy on one drawing of a workload, or on a trace. Null: not known for it."""

    model_config = ConfigDict(extra="forbid")

    seed: int | None
    policy: str
    requests: int
    hit_ratio: float | None
    """Blocks from the cache among all."""
    byte_ratio: float | None
    """Tokens from the cache among all; with one model, bytes of KV too."""
    compute_saved: float | None
    """Prefill time spared among all."""
    avg_ttft_ms: float | None
    p50_ttft_ms: float | None
    p95_ttft_ms: float | None
    tokens_saved: float
    seam_tokens: int | None
    evictions: int | None
    regrets: int | None
    refused: int | None
    resident_blocks_max: int | None
    remembered_blocks_max: int | None
    replay_s: float


class PolicyFigures(BaseModel):
    """Means over the seeds with 95% intervals; one seed has no interval."""

    model_config = ConfigDict(extra="forbid")

    policy: str
    hit_ratio: Interval
    byte_ratio: Interval
    compute_saved: Interval
    avg_ttft_ms: Interval
    p95_ttft_ms: Interval
    tokens_saved: Interval
    evictions: Interval
    regrets: Interval
    ttft_gain_over_lru_percent: Interval
    """Positive: a shorter mean TTFT than LRU's on the same requests."""
    of_the_way_to_belady: Interval
    """0: LRU's byte ratio, 1: the optimum's. Null where LRU leaves nothing to gain."""
    evictions_by_type: dict[str, float]
    """Mean over the seeds."""


class Story(BaseModel):
    """How one policy's first drawing went, request by request, thinned out."""

    model_config = ConfigDict(extra="forbid")

    policy: str
    memory_utilization: list[tuple[int, float]]
    weights: list[tuple[int, dict[str, float]]]


class LaboratoryResult(BaseModel):
    """``results.json`` and ``replay_results.json``. All times to the first token are simulated estimates."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal["sembench.laboratory.v1"] = "sembench.laboratory.v1"
    kind: Literal["experiment", "replay"]
    name: str
    description: str
    started_at: str
    finished_at: str
    versions: dict[str, str]
    host: dict[str, Any]
    config: dict[str, Any]
    latency: dict[str, Any]
    trace: dict[str, Any] | None = None
    """Of a replay: what the trace holds."""
    budget_tokens: int
    policies: list[PolicyFigures]
    belady: PolicyFigures
    runs: list[RunFigures]
    stories: list[Story]
    observed: list[ObservedTtft] | None = None
    """Of a replay whose trace has observed times."""


class ObservedTtft(BaseModel):
    model_config = ConfigDict(extra="forbid")

    request_id: str
    observed_ttft_ms: float
    simulated_ttft_ms: dict[str, float]


LaboratoryResult.model_rebuild()


def figures_of(policy: str, seed: int | None, tally: Tally, seconds: float) -> RunFigures:
    return RunFigures(
        seed=seed,
        policy=policy,
        requests=tally.requests,
        hit_ratio=tally.hit_ratio,
        byte_ratio=tally.byte_ratio,
        compute_saved=tally.compute_saved,
        avg_ttft_ms=tally.mean_ttft_ms,
        p50_ttft_ms=tally.ttft_percentile(50),
        p95_ttft_ms=tally.ttft_percentile(95),
        tokens_saved=tally.cached_tokens,
        seam_tokens=tally.seam_tokens,
        evictions=tally.evictions,
        regrets=tally.regrets,
        refused=tally.refused,
        resident_blocks_max=tally.resident_blocks_max,
        remembered_blocks_max=tally.remembered_blocks_max,
        replay_s=round(seconds, 4),
    )


def figures_of_bound(seed: int | None, bound: Bound, tally: Tally, *, linear: bool, seconds: float) -> RunFigures:
    """``tally``: of any policy on the same requests, for what all have in common."""
    mean_ttft = (tally.cold_ttft_sum - bound.saved_ms) / tally.requests if linear and tally.requests else None
    return RunFigures(
        seed=seed,
        policy=BELADY,
        requests=tally.requests,
        hit_ratio=bound.block_hits / tally.blocks if tally.blocks else None,
        byte_ratio=bound.cached_tokens / tally.prompt_tokens if tally.prompt_tokens else None,
        compute_saved=bound.saved_ms / tally.full_ms if tally.full_ms else None,
        avg_ttft_ms=mean_ttft,
        p50_ttft_ms=None,
        p95_ttft_ms=None,
        tokens_saved=bound.cached_tokens,
        seam_tokens=None,
        evictions=None,
        regrets=None,
        refused=None,
        resident_blocks_max=None,
        remembered_blocks_max=None,
        replay_s=round(seconds, 4),
    )


def summarize(policy: str, runs: list[RunFigures], by_type: dict[str, float]) -> PolicyFigures:
    """``runs``: of all policies; those of ``policy`` are compared with LRU's and the optimum's of the same seed."""
    own = [run for run in runs if run.policy == policy]
    others = {(run.policy, run.seed): run for run in runs}

    def over(name: str) -> Interval:
        return _mean([getattr(run, name) for run in own])

    return PolicyFigures(
        policy=policy,
        hit_ratio=over("hit_ratio"),
        byte_ratio=over("byte_ratio"),
        compute_saved=over("compute_saved"),
        avg_ttft_ms=over("avg_ttft_ms"),
        p95_ttft_ms=over("p95_ttft_ms"),
        tokens_saved=over("tokens_saved"),
        evictions=over("evictions"),
        regrets=over("regrets"),
        ttft_gain_over_lru_percent=_mean([_gain(run, others.get((BASELINE, run.seed))) for run in own]),
        of_the_way_to_belady=_mean(
            [_way(run, others.get((BASELINE, run.seed)), others.get((BELADY, run.seed))) for run in own]
        ),
        evictions_by_type=by_type,
    )


def _mean(values: list[float | None]) -> Interval:
    return bootstrap_mean([[value] for value in values if value is not None])


def _gain(run: RunFigures, lru: RunFigures | None) -> float | None:
    if lru is None or not lru.avg_ttft_ms or run.avg_ttft_ms is None:
        return None
    return 100 * (1 - run.avg_ttft_ms / lru.avg_ttft_ms)


def _way(run: RunFigures, lru: RunFigures | None, best: RunFigures | None) -> float | None:
    if lru is None or best is None or run.byte_ratio is None or lru.byte_ratio is None or best.byte_ratio is None:
        return None
    room = best.byte_ratio - lru.byte_ratio
    return (run.byte_ratio - lru.byte_ratio) / room if room > 1e-9 else None
