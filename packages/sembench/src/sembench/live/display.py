"""What a person sees: progress on stderr, tables on stdout."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import Console
from rich.table import Table

from sembench.live.preflight import Preflight
from sembench.schema import Interval, NoiseFloor, Rate, RequestRecord, Result
from sembench.terminal import ProgressBars


def record_counter(bars: ProgressBars, total: int) -> Callable[[RequestRecord], None]:
    """Counts records, and those that failed, into a bar."""
    done = failed = 0

    def count(record: RequestRecord) -> None:
        nonlocal done, failed
        done += 1
        failed += record.status == "error"
        bars.show("serving", done, total, f"{failed} failed" if failed else "")

    bars.show("serving", 0, total)
    return count


def print_preflight(found: Preflight) -> None:
    table = Table(title=found.url, title_justify="left")
    for heading in ("check", "result", "detail"):
        table.add_column(heading, overflow="fold")
    for check in found.checks:
        verdict = {True: "yes", False: "NO" if check.required else "no", None: "unknown"}[check.ok]
        table.add_row(check.name, verdict, check.detail)
    Console().print(table)


def print_result(result: Result) -> None:
    table = Table(show_header=False)
    table.add_column("figure")
    table.add_column("value", overflow="fold")
    for figure, value in _rows(result):
        table.add_row(figure, value)
    Console().print(table)


def _rows(result: Result) -> Iterator[tuple[str, str]]:
    figures, paired = result.aggregate, result.paired
    yield "warm requests", f"{figures.requests_ok} ok, {figures.requests_failed} failed, of {figures.items} items"
    yield "answers passed", _rate(figures.quality_pass_rate)
    yield "backend confirmed blocks", _rate(figures.backend_confirmed_block_rate)
    if figures.semantic_placement_rate_by_request:
        yield "routed by semantic placement", _rate(figures.semantic_placement_rate_by_request)
    if paired is None:
        yield "speedup", "not measured: add --paired for a cold arm"
        return
    left_out = ", ".join(f"{count} {reason}" for reason, count in paired.dropped.items())
    yield "clean pairs", f"{paired.clean_pairs} of {figures.items}" + (f" (left out: {left_out})" if left_out else "")
    times = (paired.cold_ttft_ms_median, paired.exact_ttft_ms_median, paired.warm_ttft_ms_median)
    yield "TTFT ms, cold / exact / warm", " / ".join("-" if ms is None else f"{ms:.1f}" for ms in times)
    yield "blended TTFT speedup", _interval(paired.blended_ttft_speedup_median)
    yield "negative controls' speedup", _interval(paired.negative_control_ttft_speedup_median)


def print_noise_floor(floor: NoiseFloor) -> None:
    table = Table(title="cold against cold", title_justify="left")
    for heading in ("figure", "pairs", "mean", "p5", "p50", "p95"):
        table.add_column(heading)
    for figure in ("rouge_l", "ttft_ratio", "answer_score_difference"):
        spread = getattr(floor, figure)
        numbers = (spread.mean, spread.p5, spread.p50, spread.p95)
        table.add_row(figure, str(spread.n), *("-" if value is None else f"{value:.4f}" for value in numbers))
    console = Console()
    console.print(table)
    console.print(f"same text: {_rate(floor.exact_match)}")
    for reason, count in floor.dropped.items():
        console.print(f"left out: {count} servings: {reason}")


def _rate(rate: Rate | None) -> str:
    if rate is None or rate.value is None:
        return "not measured"
    return f"{rate.value:.3f} ({rate.numerator:g} / {rate.denominator:g})"


def _interval(interval: Interval | None) -> str:
    if interval is None or interval.value is None:
        return "not measured"
    bounds = f", 95% {interval.low:.3f} to {interval.high:.3f}" if interval.low is not None else ""
    return f"{interval.value:.3f}{bounds} (n = {interval.n})"
