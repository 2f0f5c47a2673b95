"""What a person sees: how a point is doing, on stderr, and the table of all points, on stdout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sembench.load.point import LoadPoint, Percentiles
from sembench.load.run import Setting
from sembench.load.watch import Watch
from sembench.terminal import ProgressBars

_REFRESH_S = 1.0


class PointObserver:
    """Shows how each point is doing, once a second: a thread that draws would take time from the streams."""

    def __init__(self, bars: ProgressBars, points: int) -> None:
        self._bars = bars
        self._points, self._started = points, 0

    async def observe(self, setting: Setting, watch: Watch) -> None:
        self._started += 1
        name = f"point {self._started} of {self._points}: {setting.words}"
        self._bars.log(name)
        begin = time.monotonic()
        try:
            while True:
                failed = sum(answer.error is not None for answer in watch.answers)
                warming = "warming up, " if time.monotonic() < watch.window_start else ""
                note = f"{warming}{len(watch.answers) - failed} answered, {failed} failed, {watch.in_flight} in flight"
                self._bars.show(name, time.monotonic() - begin, watch.window_end - begin, note)
                await asyncio.sleep(_REFRESH_S)
        finally:
            self._bars.drop(name)


def print_points(points: Sequence[LoadPoint]) -> None:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("load", no_wrap=True)
    headings = ("reuse", "answered", "req/s", "tok/s", "TTFT ms\np50/p95/p99", "latency ms\np50/p99", "ITL ms\np50")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for point in points:
        level = f"{point.concurrency} in flight" if point.mode == "closed" else f"{point.rate:g}/s"
        table.add_row(
            level,
            f"{point.reuse_share:g}",
            f"{point.ok}/{point.requests}",
            f"{point.requests_per_s:.2f}",
            f"{point.output_tokens_per_s:.1f}",
            _row(point.ttft_ms, "p50", "p95", "p99"),
            _row(point.latency_ms, "p50", "p99"),
            _row(point.itl_ms, "p50"),
        )
    console = Console()
    console.print(table)
    for point in points:
        if point.failed:
            kinds = ", ".join(f"{count} {kind}" for kind, count in point.errors.items())
            console.print(f"{point.failed} of {point.requests} failed at {point.level:g}: {kinds}", highlight=False)


def _row(spread: Percentiles, *names: str) -> str:
    if not spread.n:
        return "not measured"
    return "/".join(f"{getattr(spread, name):.0f}" for name in names)
