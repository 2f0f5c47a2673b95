"""Cells of Markdown tables. A dash is a figure that was not measured; a figure never stands without its n."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sembench.schema import Interval, Rate
from sembench.statistics import mean

NOT_MEASURED = "-"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_line(head), _line(["---"] * len(head)), *map(_line, rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def milliseconds(interval: Interval) -> str:
    return _cell(interval, " ms", ",.0f")


def times(interval: Interval | None) -> str:
    return NOT_MEASURED if interval is None else _cell(interval, "x", ",.2f")


def share(interval: Interval) -> str:
    """Of what is a share itself: as percent."""
    scaled = {name: None if (at := getattr(interval, name)) is None else 100 * at for name in ("value", "low", "high")}
    return _cell(interval.model_copy(update=scaled), "%", ".1f")


def tokens(interval: Interval) -> str:
    return NOT_MEASURED if interval.value is None else f"{interval.value:,.0f}"


def _cell(interval: Interval, unit: str, digits: str) -> str:
    if interval.value is None:
        return NOT_MEASURED if not interval.n else f"{NOT_MEASURED} (n={interval.n})"
    bounds = "" if interval.low is None else f"{interval.low:{digits}} to {interval.high:{digits}}, "
    return f"{interval.value:{digits}}{unit} ({bounds}n={interval.n})"


def rate(value: Rate | None) -> str:
    if value is None or value.numerator is None or value.denominator is None:
        return NOT_MEASURED
    counts = f"{value.numerator:,.0f} of {value.denominator:,.0f}"
    return f"{NOT_MEASURED} ({counts})" if value.value is None else f"{100 * value.value:.1f}% ({counts})"


def average(value: float | None, n: int, digits: int = 2) -> str:
    return NOT_MEASURED if value is None else f"{value:.{digits}f} (n={n})"


def average_of(values: Sequence[int]) -> str:
    return average(mean(values), len(values))
