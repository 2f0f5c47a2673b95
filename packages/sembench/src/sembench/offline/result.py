"""The result file of an offline run, and what ``run-offline`` shows of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sembench.offline.replay import OfflineRun
from sembench.results import build_result
from sembench.schema import Aggregate, ManifestItem, Rate, Result, RunIdentity, TransformSummary
from sembench.terminal import table_console

_WIDTH = 120


def build_offline_result(
    identity: RunIdentity,
    config: dict[str, Any],
    items: Sequence[ManifestItem],
    run: OfflineRun,
    block_size: int,
    *,
    shared_pool: bool,
) -> Result:
    """Every figure that needs no backend; the others stay None."""
    told = {**config, "block_size": block_size, "shared_pool": shared_pool, "donor_offers": dict(run.offers)}
    result = build_result(identity, told, items, run.records, block_size)
    return _without_controls(result) if shared_pool else result


def _without_controls(result: Result) -> Result:
    """Among the donors of all items a control's own document may well be: its figures would accuse the innocent."""
    return result.model_copy(
        update={
            "aggregate": _stripped(result.aggregate),
            "by_transform": {
                name: TransformSummary(aggregate=_stripped(summary.aggregate), paired=summary.paired)
                for name, summary in result.by_transform.items()
            },
        }
    )


def _stripped(aggregate: Aggregate) -> Aggregate:
    controls = [name for name in Aggregate.model_fields if name.startswith("negative_control_")]
    return aggregate.model_copy(update=dict.fromkeys(controls))


def print_summary(result: Result, console: Console | None = None) -> None:
    """One row per transform and one for all; a dash is a figure that was not measured.

    Counts are of full blocks, with their share of ``blocks``; ``placed`` counts items, with their share of ``items``.
    """
    console = console or table_console(_WIDTH)
    aggregate, config = result.aggregate, result.config
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("transform", no_wrap=True)
    for heading in ("items", "blocks", "exact", "candidate", "eligible", "lift", "reusable"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, summary in result.by_transform.items():
        table.add_row(name, *_cells(summary.aggregate))
    table.add_section()
    table.add_row("all", *_cells(aggregate))
    console.print(table)
    provider = config.get("provider", {})
    console.print(
        f"provider {provider.get('name')}, tokenizer {config.get('tokenizer')}, blocks of {aggregate.block_size} tokens"
    )
    console.print(
        f"negative controls: eligible {_rate(aggregate.negative_control_semantic_eligible_rate)}, "
        f"with something to reuse {_rate(aggregate.negative_control_semantic_eligible_rate_by_request)}"
    )
    if aggregate.lookup_us:
        console.print("lookup: " + ", ".join(f"{name} {us / 1e3:.2f} ms" for name, us in aggregate.lookup_us.items()))
    if aggregate.decline_reasons:
        console.print("declined: " + _counts(aggregate.decline_reasons))
    if provider.get("note"):
        console.print(f"note on {provider.get('name')}: {provider['note']}")
    if aggregate.requests_failed:
        first = next(record.error for record in result.requests if record.status == "error")
        console.print(
            f"failed: {aggregate.requests_failed} of {aggregate.items} items; the first: {first}", style="red"
        )
    console.print("Nothing was loaded: these figures say what could be reused, not what was.")


def _cells(aggregate: Aggregate) -> list[str]:
    lift = aggregate.semantic_eligible_lift
    exact = aggregate.exact_block_hit_rate
    return [
        str(aggregate.items),
        "-" if exact is None or exact.denominator is None else f"{exact.denominator:.0f}",
        _share(exact),
        _share(aggregate.semantic_candidate_block_rate),
        _share(aggregate.semantic_eligible_block_rate),
        "-" if lift is None else f"{100 * lift:+.1f} pp",
        _share(aggregate.semantic_eligible_rate_by_request),
    ]


def _share(rate: Rate | None) -> str:
    """The numerator and the share; the denominator has a column of its own."""
    if rate is None or rate.numerator is None:
        return "-"
    return f"{rate.numerator:.0f} {'-' if rate.value is None else f'{100 * rate.value:5.1f}%'}"


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return "-"
    parts = " / ".join("-" if part is None else f"{part:.0f}" for part in (rate.numerator, rate.denominator))
    return f"{'-' if rate.value is None else f'{100 * rate.value:.1f}%'} ({parts})"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda entry: -entry[1]))
