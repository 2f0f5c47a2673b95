"""The table that a run ends with."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from sembench.laboratory.results import LaboratoryResult, PolicyFigures
from sembench.laboratory.summary import verdict
from sembench.schema import Interval


def print_result(result: LaboratoryResult, console: Console | None = None) -> None:
    """A line per policy. The last column is what Belady saves, the same on every line: nobody can pass it."""
    table = Table(title=f"{result.name}: {result.config['semantics']} cache of {result.budget_tokens:,} tokens")
    table.add_column("policy")
    for name in ("hit ratio", "byte ratio", "compute saved", "TTFT ms", "vs LRU", "to Belady", "Belady byte ratio"):
        table.add_column(name, justify="right")
    for each in result.policies:
        table.add_row(each.policy, *_cells(each), _shown(result.belady.byte_ratio, "{:.4f}"))
    (console or Console()).print(table)
    (console or Console()).print(f"{verdict(result)} Times are simulated.".replace("**", ""), highlight=False)


def _cells(figures: PolicyFigures) -> list[str]:
    way = figures.of_the_way_to_belady.value
    return [
        _shown(figures.hit_ratio, "{:.4f}"),
        _shown(figures.byte_ratio, "{:.4f}"),
        _shown(figures.compute_saved, "{:.4f}"),
        _shown(figures.avg_ttft_ms, "{:,.1f}"),
        _shown(figures.ttft_gain_over_lru_percent, "{:+.2f}%"),
        "–" if way is None else f"{way:.0%}",
    ]


def _shown(interval: Interval, form: str) -> str:
    return "–" if interval.value is None else form.format(interval.value)
