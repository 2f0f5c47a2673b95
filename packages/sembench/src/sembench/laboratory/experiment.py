"""Runs experiments and replays: every policy on the same requests, beside the best that was possible."""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from sembench.identity import now, versions
from sembench.laboratory.belady import Accesses, bound_of
from sembench.laboratory.caches import SimulatedCache, make_cache, replay
from sembench.laboratory.config import CacheSettings, ExperimentConfig
from sembench.laboratory.latency import LatencyModel
from sembench.laboratory.requests import CacheRequest
from sembench.laboratory.results import (
    BELADY,
    LaboratoryResult,
    ObservedTtft,
    RunFigures,
    Story,
    figures_of,
    figures_of_bound,
    summarize,
)
from sembench.laboratory.tally import Tally
from sembench.laboratory.workloads import generate

Progress = Callable[[], None]
MOST_OBSERVED = 2000
"""Requests of a replay that are compared one by one; of longer traces, evenly spread ones."""


def run_experiment(config: ExperimentConfig, on_policy: Progress = lambda: None) -> LaboratoryResult:
    """``on_policy`` is called ``steps_of(config)`` times."""
    drawings = _Drawings(config, config.latency.model(), on_policy)
    started = now()
    for seed in range(config.first_seed, config.first_seed + config.seeds):
        drawings.add(seed, generate(config.workload, config.requests, seed, config.mean_gap_s))
    return drawings.result("experiment", config.experiment_id, config.description, started)


def steps_of(config: ExperimentConfig) -> int:
    return config.seeds * (len(config.policies) + 1)


def run_replay(
    name: str,
    requests: Sequence[CacheRequest],
    settings: CacheSettings,
    latency: LatencyModel,
    trace: dict[str, Any],
    on_policy: Progress = lambda: None,
) -> LaboratoryResult:
    drawings = _Drawings(settings, latency, on_policy)
    started = now()
    drawings.add(None, requests)
    result = drawings.result("replay", name, f"{len(requests):,} requests of a trace", started)
    observed = _observed(requests, drawings.first)
    return result.model_copy(update={"trace": trace, "observed": observed or None})


class _Drawings:
    """The runs so far: all policies on each drawing of a workload."""

    def __init__(self, settings: CacheSettings, latency: LatencyModel, on_policy: Progress) -> None:
        self._settings = settings
        self._latency = latency
        self._on_policy = on_policy
        self._runs: list[RunFigures] = []
        self._by_type: dict[str, Counter[str]] = {name: Counter() for name in settings.policies}
        self._count = 0
        self.first: dict[str, SimulatedCache] = {}
        """The caches of the first drawing, as they were left."""

    def add(self, seed: int | None, requests: Sequence[CacheRequest]) -> None:
        self._count += 1
        tally = Tally()
        for policy in self._settings.policies:
            cache = self._cache(policy)
            began = time.perf_counter()
            tally = replay(requests, cache)
            self._runs.append(figures_of(policy, seed, tally, time.perf_counter() - began))
            self._by_type[policy] += tally.evictions_by_type
            self.first.setdefault(policy, cache)
            self._on_policy()
        began = time.perf_counter()
        accesses = Accesses.of(requests, self._settings.semantics, self._latency)
        bound = bound_of(accesses, self._settings.budget_tokens)
        took = time.perf_counter() - began
        self._runs.append(figures_of_bound(seed, bound, tally, linear=self._latency.is_linear, seconds=took))
        self._on_policy()

    def _cache(self, policy: str) -> SimulatedCache:
        settings = self._settings
        return make_cache(
            policy,
            settings.budget_tokens,
            semantics=settings.semantics,
            latency=self._latency,
            seam_tokens=settings.seam_tokens,
            min_span_tokens=settings.min_span_tokens,
        )

    def result(self, kind: Any, name: str, description: str, started: str) -> LaboratoryResult:
        return LaboratoryResult(
            kind=kind,
            name=name,
            description=description,
            started_at=started,
            finished_at=now(),
            versions=versions(),
            host={"platform": platform.platform(), "cpus": os.cpu_count()},
            config=self._settings.model_dump(mode="json"),
            latency=self._latency.describe(),
            budget_tokens=self._settings.budget_tokens,
            policies=[
                summarize(policy, self._runs, {kind: n / self._count for kind, n in sorted(by_type.items())})
                for policy, by_type in self._by_type.items()
            ],
            belady=summarize(BELADY, self._runs, {}),
            runs=self._runs,
            stories=[
                Story(
                    policy=policy,
                    memory_utilization=cache.tally.utilization.points,
                    weights=cache.tally.weights.points,
                )
                for policy, cache in self.first.items()
            ],
        )


def _observed(requests: Sequence[CacheRequest], caches: dict[str, SimulatedCache]) -> list[ObservedTtft]:
    known = [index for index, request in enumerate(requests) if request.observed_ttft_ms is not None]
    chosen = known[:: -(-len(known) // MOST_OBSERVED) or 1]
    return [
        ObservedTtft(
            request_id=requests[index].request_id,
            observed_ttft_ms=requests[index].observed_ttft_ms or 0.0,
            simulated_ttft_ms={policy: cache.tally.ttfts[index] for policy, cache in caches.items()},
        )
        for index in chosen
    ]
