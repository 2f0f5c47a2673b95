"""Eviction policies on all workloads and on real traces: hit ratios, simulated TTFT, distance to Belady, speed.

The real traces are not part of the repository. Fetch them by hand and give their folder with --traces:
conversation_trace.jsonl (kvcache-ai/Mooncake, FAST25-release/traces) and coding/trace_*.json (the folder traces of
callanjfox/kv-cache-tester). Without it only the synthetic workloads run. The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _whole_donors import reuse_of

from sembench.laboratory.belady import Accesses, bound_of
from sembench.laboratory.caches import Semantics, make_cache, replay
from sembench.laboratory.config import load_experiment, shipped_experiments
from sembench.laboratory.experiment import run_experiment
from sembench.laboratory.latency import LinearLatency
from sembench.laboratory.requests import CacheRequest
from sembench.laboratory.results import BELADY, LaboratoryResult, PolicyFigures
from sembench.laboratory.summary import markdown_table
from sembench.laboratory.trace_facts import budget_of_share
from sembench.laboratory.traces import read_trace
from sembench.laboratory.workloads import generate
from semblend_core.eviction import POLICY_NAMES

SHARES = (0.01, 0.05, 0.10, 0.25)
MEASURED_CAPACITIES = (2_000, 8_000)
LINEAR = LinearLatency()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="folder with the real traces")
    parser.add_argument("--policies", nargs="+", default=list(POLICY_NAMES), choices=POLICY_NAMES, help="default: all")
    parser.add_argument("--seeds", type=int, default=20, help="drawings of each workload (default 20)")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="of all different blocks of a trace")
    parser.add_argument("--sessions", type=int, default=100, help="coding sessions, the first so many (default 100)")
    parser.add_argument(
        "--accesses", type=int, nargs="+", default=[10**6], help="block accesses for the speed (default 1000000)"
    )
    parser.add_argument("--parts", nargs="+", default=["workloads", "donors", "traces", "speed"], help="which to run")
    parser.add_argument("--quick", action="store_true", help="few seeds, no traces: for trying the script")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.accesses, options.traces = 2, [20_000, 40_000], None
    figures: dict[str, Any] = {}
    if "workloads" in options.parts:
        figures["workloads"] = study_workloads(options.policies, options.seeds)
    if "donors" in options.parts:
        figures["donors"] = study_donors(options)
    if "traces" in options.parts and options.traces is not None:
        figures["traces"] = study_traces(options.traces, options)
    if "speed" in options.parts:
        figures["speed"] = study_speed(options.policies, options.accesses)
    print(json.dumps(figures))
    return 0


# --- Workloads -------------------------------------------------------------------------------------------------------


def study_workloads(policies: Sequence[str], seeds: int) -> dict[str, Any]:
    results = []
    for name in shipped_experiments():
        began = time.perf_counter()
        results.append(run_experiment(load_experiment(name, seeds=seeds, policies=list(policies))))
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    print(f"\nMean simulated TTFT in ms over {seeds} seeds:\n\n{_by_workload(results, 'avg_ttft_ms', '{:.1f}')}")
    gains = _by_workload(results, "ttft_gain_over_lru_percent", "{:+.1f}")
    print(f"\nTTFT gain over LRU in %, with 95% intervals:\n\n{gains}")
    print(f"\nByte ratio:\n\n{_by_workload(results, 'byte_ratio', '{:.3f}')}\n", flush=True)
    return {
        result.name: {each.policy: each.avg_ttft_ms.value for each in [*result.policies, result.belady]}
        for result in results
    }


def _by_workload(results: Sequence[LaboratoryResult], metric: str, form: str) -> str:
    def cell(figures: PolicyFigures) -> str:
        interval = getattr(figures, metric)
        if interval.value is None:
            return "–"
        spread = "" if interval.low is None else f" ({form.format(interval.low)} to {form.format(interval.high)})"
        return form.format(interval.value) + (spread if metric == "ttft_gain_over_lru_percent" else "")

    columns = [[*result.policies, result.belady] for result in results]
    head = ["", *(each.policy for each in columns[0])]
    return markdown_table(
        head, [[result.name, *map(cell, each)] for result, each in zip(results, columns, strict=True)]
    )


# --- Whole donors ----------------------------------------------------------------------------------------------------


def study_donors(options: argparse.Namespace) -> dict[str, Any]:
    """What donors serve where they are kept and dropped as wholes, as in an engine: share of the prompts' tokens."""
    traces: dict[str, list[list[CacheRequest]]] = {}
    for name in shipped_experiments():
        config = load_experiment(name)
        traces[name] = [generate(config.workload, config.requests, seed) for seed in range(options.seeds)]
    if options.traces is not None and (options.traces / "conversation_trace.jsonl").is_file():
        traces["Mooncake conversation"] = [read_trace(options.traces / "conversation_trace.jsonl", "mooncake")]
    if options.traces is not None and (options.traces / "coding").is_dir():
        traces[f"{options.sessions} coding sessions"] = [_sessions(options.traces / "coding", options.sessions)]
    figures: dict[str, Any] = {}
    for name, drawings in traces.items():
        for share in options.shares:
            budgets = [budget_of_share(each, share) for each in drawings]
            found = {
                policy: float(np.mean([reuse_of(*each, policy) for each in zip(drawings, budgets, strict=True)]))
                for policy in options.policies
            }
            figures.setdefault(name, {})[f"{share:.0%}"] = found
            print(f"  {name} {share:.0%}: {found}", flush=True)
    rows = [
        [name, share, *(f"{each[policy]:.3f}" for policy in options.policies)]
        for name, shares in figures.items()
        for share, each in shares.items()
    ]
    print(f"\n{markdown_table(['reuse', 'of all text', *options.policies], rows)}\n", flush=True)
    return figures


# --- Real traces -----------------------------------------------------------------------------------------------------


def study_traces(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    conversation = folder / "conversation_trace.jsonl"
    if conversation.is_file():
        requests = read_trace(conversation, "mooncake")
        for semantics in ("block", "prefix"):
            figures[f"mooncake {semantics}"] = _curve("Mooncake conversation", requests, semantics, options)
    coding = folder / "coding"
    if coding.is_dir():
        requests = _sessions(coding, options.sessions)
        figures["coding prefix"] = _curve(f"{options.sessions} coding sessions", requests, "prefix", options)
    return figures


def _sessions(folder: Path, count: int) -> list[CacheRequest]:
    """The first ``count`` sessions, each starting a minute after the one before."""
    requests: list[CacheRequest] = []
    for number, path in enumerate(sorted(folder.glob("*.json"))[:count]):
        for request in read_trace(path, "kv-cache-tester"):
            request.at_s += 60.0 * number
            requests.append(request)
    return sorted(requests, key=lambda request: request.at_s)


def _curve(
    title: str, requests: list[CacheRequest], semantics: Semantics, options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Hit ratio by policy at shares of all different blocks."""
    accesses = Accesses.of(requests, semantics, LINEAR, "blocks")
    different = len(set(accesses.keys))
    counts = f"{len(requests):,} requests, {len(accesses.keys):,} blocks, {different:,} different"
    print(f"\n{title}, {semantics} cache: {counts}")
    figures: dict[str, dict[str, float]] = {policy: {} for policy in [*options.policies, BELADY]}
    for share in options.shares:
        capacity = int(share * different)
        for policy in options.policies:
            began = time.perf_counter()
            tally = replay(requests, make_cache(policy, capacity, semantics=semantics, latency=LINEAR, unit="blocks"))
            figures[policy][f"{share:.0%}"] = tally.hit_ratio or 0.0
            took = time.perf_counter() - began
            print(f"  {share:.0%} {policy}: {tally.hit_ratio:.4f} in {took:.1f} s", flush=True)
        figures[BELADY][f"{share:.0%}"] = bound_of(accesses, capacity).block_hits / len(accesses.keys)
    rows = [
        [f"{share:.0%}", *(f"{figures[policy][f'{share:.0%}']:.3f}" for policy in figures)] for share in options.shares
    ]
    print(f"\n{markdown_table(['of all blocks', *figures], rows)}\n", flush=True)
    return figures


# --- Speed -----------------------------------------------------------------------------------------------------------


def study_speed(policies: Sequence[str], accesses: Sequence[int]) -> dict[str, Any]:
    """CPU seconds of one core, so that whoever else uses the machine counts little."""
    figures: dict[str, Any] = {}
    for policy in policies:
        figures[policy] = {
            "cpu_s": {str(count): _seconds(policy, count) for count in accesses},
            "bytes_per_resident_block": [_memory(policy, capacity) for capacity in MEASURED_CAPACITIES],
        }
        print(f"  {policy}: {figures[policy]}", flush=True)
    rows = [
        [policy, *(f"{seconds:.1f}" for seconds in each["cpu_s"].values()), *map(str, each["bytes_per_resident_block"])]
        for policy, each in figures.items()
    ]
    head = [
        "policy",
        *(f"CPU s for {count:,}" for count in accesses),
        *(f"bytes per block at {capacity:,}" for capacity in MEASURED_CAPACITIES),
    ]
    print(f"\n{markdown_table(head, rows)}\n", flush=True)
    return figures


def _seconds(policy: str, accesses: int) -> float:
    cache = make_cache(policy, 10_000, semantics="block", unit="blocks")
    began = time.process_time()
    replay(_stream(accesses), cache)
    return round(time.process_time() - began, 2)


def _memory(policy: str, capacity: int) -> int:
    """Memory that a full cache takes for each block that it holds, ghosts and all."""
    tracemalloc.start()
    cache = make_cache(policy, capacity, semantics="block", unit="blocks")
    replay(_stream(6 * capacity), cache)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return round(taken / len(cache.policy))


def _stream(accesses: int, blocks_per_request: int = 50) -> Iterator[CacheRequest]:
    """Popularity by Zipf's law over 200,000 blocks; made as it is read, so the trace takes no memory."""
    draw = np.random.default_rng(0)
    for number in range(accesses // blocks_per_request):
        keys = tuple((draw.zipf(1.1, blocks_per_request) % 200_000).tolist())
        yield CacheRequest("r", 0.1 * number, keys, (16,) * blocks_per_request, ("other",) * blocks_per_request)


if __name__ == "__main__":
    raise SystemExit(main())
