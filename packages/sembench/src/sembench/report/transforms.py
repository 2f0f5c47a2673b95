"""The headline's figures for each transform."""

from __future__ import annotations

from sembench.report.figures import count, interval_cell, number, percent, rate_cell
from sembench.report.markup import Child, Html, el, join, section, table
from sembench.schema import Interval, Result, TransformSummary

_HEAD = ("Transform", "Items", "Hit rate", "TTFT speed-up", "Tokens reused", "KL", "PPL ratio", "Top-1", "Pass")
_OFFLINE_HEAD = ("Transform", "Items", "Exact blocks", "Candidate", "Eligible", "Placement")


def by_transform(result: Result, prefix: str) -> Html:
    if not result.by_transform:
        told = el("p", "Not measured: the result has no figures by transform.", class_="missing")
        return section(f"{prefix}transforms", "By transform", told)
    offline = result.run.kind == "offline"
    rows = [
        (_name(n, transform), *(_offline_cells(summary) if offline else _cells(summary)))
        for n, (transform, summary) in enumerate(result.by_transform.items(), 1)
    ]
    note = None
    if not offline:
        note = el("p", "A speed-up is the median over clean pairs, misses among them, with its 95% interval.")
    head = _OFFLINE_HEAD if offline else _HEAD
    return section(f"{prefix}transforms", "By transform", note, table(head, rows, class_="figures wide"))


def speedup_of(summary: TransformSummary) -> Interval | None:
    """For a transform that holds controls only, their own ratio."""
    paired = summary.paired
    if paired is None:
        return None
    blended = paired.blended_ttft_speedup_median
    if blended is None or blended.value is None:
        return paired.negative_control_ttft_speedup_median or blended
    return blended


def _cells(summary: TransformSummary) -> tuple[Child, ...]:
    aggregate, paired = summary.aggregate, summary.paired
    hits = paired.hit_rate if paired and paired.hit_rate else aggregate.semantic_placement_rate_by_request
    return (
        count(aggregate.items),
        rate_cell(hits),
        interval_cell(speedup_of(summary)),
        count(aggregate.materialized_tokens),
        number(aggregate.kl_mean),
        number(aggregate.ppl_ratio, 4),
        percent(aggregate.top1),
        rate_cell(aggregate.quality_pass_rate),
    )


def _offline_cells(summary: TransformSummary) -> tuple[Child, ...]:
    aggregate = summary.aggregate
    return (
        count(aggregate.items),
        rate_cell(aggregate.exact_block_hit_rate),
        rate_cell(aggregate.semantic_candidate_block_rate),
        rate_cell(aggregate.semantic_eligible_block_rate),
        rate_cell(aggregate.semantic_placement_rate_by_request),
    )


def _name(n: int, transform: str) -> Html:
    return join((el("span", f"{n} ", class_="number"), transform))
