"""Results to report on, and the pages made of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from sembench.load import LoadPoint, Percentiles
from sembench.report import write_report
from sembench.schema import (
    Aggregate,
    Interval,
    Paired,
    Quality,
    Rate,
    RequestRecord,
    Result,
    RunIdentity,
    TransformSummary,
)

TRANSFORMS = {
    # transform: speed-up, KL
    "exact_repeat": (5.1, 0.00002),
    "instruction_variant": (3.2, 0.0031),
    "same_evidence_new_task": (2.9, 0.0040),
    "rag_reorder": (2.4, 0.019),
    "multi_donor_composite": (2.1, 0.024),
    "sparse_edit": (1.7, 0.011),
    "question_paraphrase": (3.1, 0.0036),
    "negative_control": (0.99, 0.0),
}
HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)> & \"quoted\" \u202eright to left\x00 end"


def _record(source: random.Random, number: int, transform: str, arm: str, length: int, cold_ms: float) -> RequestRecord:
    speedup, kl = TRANSFORMS[transform]
    control, warm = transform == "negative_control", arm == "warm"
    ttft = {"cold": cold_ms, "exact": 9.0 + length / 900, "warm": cold_ms / speedup * source.uniform(0.9, 1.1)}[arm]
    confirmed = int(length * 0.85) if warm and not control else 0
    answer = f"The cause was an expired certificate on the mail relay, renewed at 14:0{number % 10}."
    if warm and transform == "rag_reorder":
        answer = f"An expired certificate on the relay was the cause; it was renewed at 14:0{number % 10}."
    return RequestRecord(
        item_id=f"{number:016x}",
        arm=arm,  # type: ignore[arg-type]
        dataset="support",
        transform=transform,
        negative_control=control,
        prompt_tokens=length,
        confirmed_tokens=confirmed if warm else None,
        advertised_tokens=confirmed if warm else None,
        outcome=("declined" if control else "materialized") if warm else None,
        decline_reason="no_spans" if warm and control else None,
        ttft_ms=ttft,
        proved_cold=True if arm == "cold" else None,
        output=HOSTILE if number == 3 else answer,
        quality=Quality(kl_mean=kl, top1=0.98, cold_rouge_l=0.7 if "relay was" in answer else 1.0, passed=True)
        if warm
        else Quality(),
    )


def _summary(records: list[RequestRecord], transform: str | None = None) -> tuple[Aggregate, Paired]:
    warm = [record for record in records if record.arm == "warm" and transform in (None, record.transform)]
    cold = {record.item_id: record for record in records if record.arm == "cold"}
    ratios = [
        (cold[record.item_id].ttft_ms or 0) / (record.ttft_ms or 1) for record in warm if not record.negative_control
    ]
    controls = [
        (cold[record.item_id].ttft_ms or 0) / (record.ttft_ms or 1) for record in warm if record.negative_control
    ]
    hits = sum(bool(record.confirmed_tokens) for record in warm)
    kls = [record.quality.kl_mean or 0.0 for record in warm]
    tokens = sum(record.confirmed_tokens or 0 for record in warm)
    aggregate = Aggregate(
        items=len(warm),
        requests_ok=len(warm),
        requests_failed=0,
        block_size=16,
        exact_block_hit_rate=Rate.of(812, 12_480),
        backend_confirmed_block_rate=Rate.of(9_950, 12_480),
        backend_confirmed_lift=0.7322,
        backend_confirmed_rate_by_request=Rate.of(hits, len(warm)),
        negative_control_semantic_eligible_rate=Rate.of(0, 1_310),
        negative_control_backend_confirmed_rate=Rate.of(0, 1_310),
        negative_control_backend_confirmed_rate_by_request=Rate.of(0, len(controls)) if controls else None,
        materialized_reuse_rate=Rate.of(tokens, tokens or None),
        materialized_tokens=tokens,
        quality_pass_rate=Rate.of(len(warm) - 1, len(warm)),
        f1=0.81,
        rouge_l=0.79,
        kl_mean=sum(kls) / len(kls),
        kl_max=max(kls),
        ppl_ratio=1.0042,
        top1=0.981,
        outcomes={"materialized": hits, "declined": len(warm) - hits} if transform is None else {},
        decline_reasons={"no_spans": len(controls)} if transform is None and controls else {},
    )
    paired = Paired(
        clean_pairs=len(warm),
        dropped={"cold arm was warm": 2} if transform is None else {},
        cold_ttft_ms_median=median(record.ttft_ms or 0 for record in cold.values()),
        warm_ttft_ms_median=median(record.ttft_ms or 0 for record in warm),
        exact_ttft_ms_median=11.4,
        blended_ttft_speedup_median=_interval(ratios),
        hit_ttft_speedup_median=_interval(ratios),
        hit_rate=Rate.of(hits, len(warm)),
        negative_control_ttft_speedup_median=_interval(controls),
        miss_tax_ms=Interval(value=0.8, low=-1.9, high=2.7, n=6) if controls else None,
        warm_rouge_l=0.79,
        cold_rouge_l=0.80,
        noise_floor={"kl_mean": 1.1e-6},
    )
    return aggregate, paired


def _interval(values: list[float]) -> Interval | None:
    if not values:
        return None
    return Interval(value=median(values), low=min(values), high=max(values), n=len(values))


def make_result(kind: str = "embedded", sha256: str = "ab" * 32, items: int = 48, seed: int = 1) -> Result:
    """A complete replay, made of records of every transform and length."""
    source, records = random.Random(seed), []
    for number in range(items):
        transform = list(TRANSFORMS)[number % len(TRANSFORMS)]
        length = int(2 ** source.uniform(9.2, 13.9))
        cold_ms = 4 + length * 0.11 * source.uniform(0.95, 1.05)
        records += [_record(source, number, transform, arm, length, cold_ms) for arm in ("cold", "exact", "warm")]
    aggregate, paired = _summary(records)
    parts = {transform: _summary(records, transform) for transform in TRANSFORMS}
    return Result(
        run=make_identity(kind, sha256, items),
        config={"model": "HuggingFaceTB/SmolLM2-135M-Instruct", "policy": "boundary", "budget": 0.15},
        aggregate=aggregate,
        paired=paired,
        by_transform={name: TransformSummary(aggregate=a, paired=p) for name, (a, p) in parts.items()},
        requests=records,
    )


def make_identity(kind: str, sha256: str | None, items: int) -> RunIdentity:
    return RunIdentity(
        kind=kind,  # type: ignore[arg-type]
        started_at="2026-03-04T10:00:00+00:00",
        finished_at="2026-03-04T10:04:10+00:00",
        manifest="manifests/synthetic.jsonl",
        manifest_sha256=sha256,
        manifest_items=items,
        command=["sembench", "run-embedded", "--manifest", "manifests/synthetic.jsonl", "--output", "r.json"],
        seed=7,
        versions={"sembench": "0.1.0", "python": "3.11.9", "semblend-core": "0.1.0", "torch": "2.13.0"},
        host={"platform": "Linux-6.1-x86_64", "cpus": 2, "device": "cpu"},
        engine={"name": "reference", "model": "HuggingFaceTB/SmolLM2-135M-Instruct"},
        serve_command="vllm serve HuggingFaceTB/SmolLM2-135M-Instruct --port 8000 --kv-transfer-config '{\"a\": 1}'",
    )


def make_load_result(sha256: str = "ab" * 32) -> Result:
    points = [_load_point("closed", level, share) for share in (0.0, 0.5, 1.0) for level in (1, 2, 4, 8)]
    points += [_load_point("open", level, share) for share in (0.0, 1.0) for level in (1, 2, 4)]
    return Result(
        run=make_identity("load", sha256, 48),
        config={"model": "smollm2", "max_output_tokens": 64},
        aggregate=Aggregate(items=48, requests_ok=900, requests_failed=3),
        load=[point.model_dump() for point in points],
    )


def _load_point(mode: str, level: int, share: float) -> LoadPoint:
    base = 60 * (1 + 0.35 * level) * (1 - 0.6 * share)
    spread = Percentiles.of([base * (1 + n / 40) for n in range(60)])
    return LoadPoint(
        mode=mode,  # type: ignore[arg-type]
        concurrency=level if mode == "closed" else None,
        rate=float(level) if mode == "open" else None,
        reuse_share=share,
        warmup_s=5,
        duration_s=30,
        requests=60,
        ok=60 if level < 8 else 57,
        failed=0 if level < 8 else 3,
        errors={} if level < 8 else {"http_503": 3},
        requests_per_s=2.0 * level,
        output_tokens_per_s=64.0 * level / (1 + 0.1 * level) * (1 + 0.4 * share),
        output_tokens_by="usage",
        ttft_ms=spread,
        latency_ms=Percentiles.of([base * 5 + n for n in range(60)]),
        service_ttft_ms=spread,
        service_latency_ms=spread,
        itl_ms=Percentiles.of([8 + n / 10 for n in range(60)]),
        start_lag_ms=Percentiles.of([0.1, 0.2]),
        loop_lag_ms=Percentiles.of([0.1, 0.2]),
        in_flight_max=level,
        backlog_at_start=0 if mode == "open" else None,
        backlog=7 if mode == "open" and level == 4 else 0,
    )


def bare_result() -> Result:
    """A result with nothing in it: all is not measured."""
    run = RunIdentity(
        kind="live-gateway",
        started_at="2026-03-04T10:00:00+00:00",
        finished_at=None,
        manifest=None,
        manifest_sha256=None,
        manifest_items=None,
        command=["sembench"],
        versions={},
        host={},
    )
    return Result(run=run, config={}, aggregate=Aggregate(items=0, requests_ok=0, requests_failed=0))


@pytest.fixture(scope="session")
def replay() -> Callable[..., Result]:
    return make_result


@pytest.fixture
def load_result() -> Result:
    return make_load_result()


@pytest.fixture
def nothing_measured() -> Result:
    return bare_result()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    several = [make_result(), make_result(seed=2), make_result(seed=3)]
    write_report([make_result()], folder / "replay.html")
    write_report([make_load_result()], folder / "load.html")
    write_report([bare_result()], folder / "nothing.html")
    write_report(several, folder / "compare.html", compare=True, names=["a", "a-longer-name", "c"])
    return {path.stem: path for path in folder.glob("*.html")}
