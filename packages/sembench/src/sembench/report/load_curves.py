"""Load curves: latency and throughput over concurrency or arrival rate, one line per share of reuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sembench.load.point import LoadPoint, Percentiles
from sembench.report.entries import read_entries
from sembench.report.figures import NOT_MEASURED, count, known, milliseconds, number, plain
from sembench.report.markup import Child, Html, el, join, section, table
from sembench.report.svg import Axis, Tick, legend, line, marker, plot
from sembench.schema import Result

Looks = dict[float, tuple[str, str]]
"""Class and shape for each share of reuse, the same in all plots of a result."""
_BETWEEN = (("exact", "square"), ("fourth", "circle"), ("fifth", "square"))
_LAG_OF_NOTE_MS = 5.0
_FEW = 100


def render_load_curves(result: Result, prefix: str) -> Html | None:
    if result.load is None:
        return None
    anchor, title, points = f"{prefix}load", "Load", read_load_points(result)
    if points is None:
        told = "The load entries cannot be read: their fields are not as this version writes them."
        return section(anchor, title, el("p", told, class_="missing"))
    if not points:
        return section(anchor, title, el("p", "Not measured: the run ended before its first point.", class_="missing"))
    body: list[Child] = [el("p", summarize_load(points), class_="lead")]
    looks = _looks(points)
    for mode in ("closed", "open"):
        body += _of_mode([point for point in points if point.mode == mode], looks)
    return section(anchor, title, *body)


def read_load_points(result: Result) -> list[LoadPoint] | None:
    """None where an entry is not readable."""
    return read_entries(result.load, LoadPoint)


def summarize_load(points: Sequence[LoadPoint]) -> str:
    """The heaviest load in sentences, without and with the most reuse."""
    told = []
    for mode, words in (("closed", "requests in flight"), ("open", "arrivals per second")):
        of_mode = [point for point in points if point.mode == mode and point.ttft_ms.n]
        if not of_mode:
            continue
        heaviest = max(point.level for point in of_mode)
        there = sorted((point for point in of_mode if point.level == heaviest), key=lambda point: point.reuse_share)
        figures = [
            f"{milliseconds(point.ttft_ms.p50)} at reuse share {point.reuse_share:g} "
            f"({number(point.output_tokens_per_s)} tokens/s)"
            for point in (there if len(there) == 1 else (there[0], there[-1]))
        ]
        told.append(f"With {heaviest:g} {words} the median TTFT was {' and '.join(figures)}.")
    failed, requests = sum(point.failed for point in points), sum(point.requests for point in points)
    told.append(
        f"{failed:,} of {requests:,} requests failed." if failed else f"All {requests:,} requests were answered."
    )
    return " ".join(told)


def _of_mode(points: Sequence[LoadPoint], looks: Looks) -> list[Child]:
    if not points:
        return []
    closed = points[0].mode == "closed"
    over = "requests in flight" if closed else "arrivals per second"
    note = (
        "A fixed number of requests in flight: a slow answer delays the next request, so these latencies tell how long "
        "the server takes, not how long arriving users would wait."
        if closed
        else "Requests arrive at random times, whether or not earlier ones are answered. Latency counts from when a "
        "request was due; service time, from when it was sent, stands in the table, and the backlog: how many were "
        "unanswered when the window began and when it ended."
    )
    figures: list[tuple[str, Callable[[LoadPoint], float | None]]] = [
        ("TTFT, median, ms", lambda point: point.ttft_ms.p50),
        ("TTFT, 95th percentile, ms", lambda point: point.ttft_ms.p95),
        ("output tokens per second", lambda point: point.output_tokens_per_s),
        ("latency, median, ms", lambda point: point.latency_ms.p50),
    ]
    drawings = [_curve(points, looks, title, over, of) for title, of in figures]
    shares = sorted({point.reuse_share for point in points})
    key = legend([(*looks[share], f"reuse share {share:g}") for share in shares])
    return [
        el("h3", "Closed loop" if closed else "Open loop"),
        el("p", note),
        el("figure", key, el("div", *drawings, class_="multiples")),
        _table(points, closed),
        *_remarks(points),
    ]


def _curve(
    points: Sequence[LoadPoint], looks: Looks, title: str, over: str, of: Callable[[LoadPoint], float | None]
) -> Html | None:
    values = {(point.reuse_share, point.level): known(of(point)) for point in points}
    measured = [value for value in values.values() if value is not None]
    if not measured:
        return None
    levels = sorted({point.level for point in points})
    y = Axis.from_zero(max(measured))
    centre = {level: round(100 * (n + 0.5) / len(levels), 3) for n, level in enumerate(levels)}
    marks: list[Child] = []
    for share, (series, shape) in looks.items():
        places = [(level, values.get((share, level))) for level in levels]
        known_places = [(level, value) for level, value in places if value is not None]
        marks.append(line([(centre[level], y.y(value)) for level, value in known_places], series))
        for level, value in known_places:
            tip = f"reuse share {share:g}, {plain(level)} {over}: {plain(value)}"
            marks.append(marker(centre[level], y.y(value), series, shape, tip))
    ticks = [Tick(centre[level], f"{level:g}") for level in levels]
    return plot(marks, y=y, x_ticks=ticks, y_title=title, x_title=over, describe=f"{title}, over {over}")


def _looks(points: Sequence[LoadPoint]) -> Looks:
    """The least reuse looks like cold and the most like reuse, as elsewhere on the page."""
    shares = sorted({point.reuse_share for point in points})
    looks = {share: _BETWEEN[n % len(_BETWEEN)] for n, share in enumerate(shares, -1)}
    looks[shares[-1]] = ("warm", "ring")
    looks[shares[0]] = ("cold", "circle")
    return looks


def _table(points: Sequence[LoadPoint], closed: bool) -> Html:
    level = "In flight" if closed else "Arrivals/s"
    service = () if closed else ("Service TTFT p50 / p99, ms",)
    head = (
        level,
        "Reuse share",
        "Answered",
        *(() if closed else ("Backlog",)),
        "Requests/s",
        "Tokens/s",
        "TTFT p50 / p90 / p95 / p99, ms",
        *service,
        "Latency p50 / p90 / p95 / p99, ms",
        "Between tokens p50 / p99, ms",
    )
    rows = [
        (
            f"{point.level:g}",
            f"{point.reuse_share:g}",
            f"{point.ok:,} of {point.requests:,}",
            *(() if closed else (_backlog(point),)),
            number(point.requests_per_s),
            number(point.output_tokens_per_s),
            _row(point.ttft_ms, "p50", "p90", "p95", "p99"),
            *(() if closed else (_row(point.service_ttft_ms, "p50", "p99"),)),
            _row(point.latency_ms, "p50", "p90", "p95", "p99"),
            _row(point.itl_ms, "p50", "p99"),
        )
        for point in sorted(points, key=lambda point: (point.reuse_share, point.level))
    ]
    return table(head, rows, class_="figures wide")


def _backlog(point: LoadPoint) -> Html | str:
    """Unanswered when the window began and when it ended: where it grows, the rate is too much for the server."""
    return join((count(point.backlog_at_start), " → ", count(point.backlog)))


def _row(percentiles: Percentiles, *names: str) -> Html | str:
    if not percentiles.n:
        return NOT_MEASURED
    return " / ".join(plain(getattr(percentiles, name)) for name in names)


def _remarks(points: Sequence[LoadPoint]) -> list[Child]:
    """What a reader must know before believing the curve."""
    told = []
    for point in points:
        name = f"{point.level:g} at reuse share {point.reuse_share:g}"
        if point.errors:
            kinds = ", ".join(f"{kind} {found:,}" for kind, found in sorted(point.errors.items()))
            told.append(f"{name}: {point.failed:,} of {point.requests:,} requests failed ({kinds}).")
        if point.stopped:
            told.append(f"{name}: ended early, {point.stopped}.")
        lag = known(point.loop_lag_ms.p99)
        if lag is not None and lag > _LAG_OF_NOTE_MS:
            told.append(f"{name}: the generator's own timers were {plain(lag)} ms late at the 99th percentile.")
    if any(0 < point.ok < _FEW for point in points):
        told.append(f"Of fewer than {_FEW} answers, the 99th percentile is little more than the largest value seen.")
    counted = {point.output_tokens_by for point in points}
    if "events" in counted:
        told.append("The server does not count output tokens; events that carry text were counted in their place.")
    return [el("ul", *(el("li", remark) for remark in told), class_="note")] if told else []
