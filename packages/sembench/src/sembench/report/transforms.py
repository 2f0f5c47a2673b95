"""The headline's figures for each transform, and speed against quality with one point for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sembench.report.figures import count, interval_cell, known, number, percent, rate_cell, times
from sembench.report.markup import Child, Html, el, join, section, table
from sembench.report.svg import BOTTOM, TOP, Axis, Tick, plot, spread_widely, tick_label
from sembench.schema import Interval, Result, TransformSummary

_HEAD = ("Transform", "Items", "Hit rate", "TTFT speed-up", "Tokens reused", "KL", "PPL ratio", "Top-1", "Pass")
_OFFLINE_HEAD = ("Transform", "Items", "Exact blocks", "Candidate", "Eligible", "Reusable")
# Numbers must not lie on each other at any width of the plot between these.
_NARROW, _WIDE = 280.0, 900.0
_LABEL_WIDTH, _LABEL_HEIGHT = 16.0, 13.0


def render_transforms(result: Result, prefix: str) -> Html:
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


def choose_speedup(summary: TransformSummary) -> Interval | None:
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
    hits = paired.hit_rate if paired and paired.hit_rate else aggregate.backend_confirmed_rate_by_request
    return (
        count(aggregate.items),
        rate_cell(hits),
        interval_cell(choose_speedup(summary)),
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
        rate_cell(aggregate.semantic_eligible_rate_by_request),
    )


def _name(n: int, transform: str) -> Html:
    return join((el("span", f"{n} ", class_="number"), transform))


@dataclass(frozen=True)
class Point:
    number: int
    """The transform's place in the table of transforms."""
    transform: str
    kl: float
    speedup: float


def render_speed_against_quality(result: Result, prefix: str) -> Html:
    anchor, title, points = f"{prefix}speed-quality", "Speed against quality", find_points(result)
    if not points:
        told = "Not measured: no transform has both a TTFT speed-up and a KL divergence."
        return section(anchor, title, el("p", told, class_="missing"))
    note = (
        "Each point is one transform: up is faster, left is closer to the cold distribution. The dashed line is the "
        "speed of a cold request."
    )
    key = el("ol", *(el("li", point.transform, value=point.number) for point in points), class_="point-key")
    return section(anchor, title, el("p", note), el("figure", _speed_quality_figure(points), key))


def find_points(result: Result) -> list[Point]:
    points = []
    for n, (transform, summary) in enumerate(result.by_transform.items(), 1):
        kl, interval = known(summary.aggregate.kl_mean), choose_speedup(summary)
        speedup = known(interval.value) if interval else None
        if kl is not None and speedup is not None:
            # A divergence can come out below 0 by rounding alone.
            points.append(Point(n, transform, max(kl, 0.0), speedup))
    return points


def _speed_quality_figure(points: Sequence[Point]) -> Html:
    place, ticks = _kl_places([point.kl for point in points])
    y = Axis.from_zero(max(1.0, *(point.speedup for point in points)))
    placed = [(point, place(point.kl), y.y(point.speedup)) for point in points]
    marks: list[Child] = [el("line", x1="0", x2="100%", y1=y.y(1), y2=y.y(1), class_="reference")]
    rows = place_labels([(px, py) for _, px, py in placed])
    for (point, px, py), label_y in zip(placed, rows, strict=True):
        tip = f"{point.transform}: {times(point.speedup)}, KL {number(point.kl)}"
        marks.append(el("circle", el("title", tip), cx=f"{px}%", cy=py, r=4, class_="mark warm"))
        if label_y != py:
            marks.append(el("line", x1=f"{px}%", x2=f"{px}%", y1=py, y2=label_y, class_="leader"))
        marks.append(el("text", str(point.number), x=f"{px}%", y=label_y, dx=7, dy="0.34em", class_="point-number"))
    return plot(
        marks,
        y=y,
        x_ticks=ticks,
        y_title="TTFT speed-up",
        x_title="mean KL divergence from cold",
        describe="Time-to-first-token speed-up against KL divergence, one point per transform",
        unit="×",
    )


def _kl_places(values: Sequence[float]) -> tuple[Callable[[float], float], list[Tick]]:
    """Logarithmic where the values spread, with a place of its own for 0, which has no logarithm."""
    above = [value for value in values if value > 0]
    if not above or not spread_widely(above):
        axis = Axis.from_zero(max(values) or 0.001)
        return axis.x, [Tick(axis.x(tick), tick_label(tick)) for tick in axis.ticks]
    axis = Axis.logarithm(above)
    left = 16.0 if len(above) < len(values) else 4.0

    def place(value: float) -> float:
        return axis.x(value, left) if value > 0 else 4.0

    zero = [Tick(4.0, "0")] if len(above) < len(values) else []
    return place, [*zero, *(Tick(place(tick), tick_label(tick)) for tick in axis.ticks)]


def place_labels(places: Sequence[tuple[float, float]]) -> list[float]:
    """For each point (percent, pixels) the height of its number, off the other points and the numbers before it."""
    taken: list[tuple[float, float]] = []
    for x, y in places:
        candidates = [y + step * _LABEL_HEIGHT for step in sorted(range(-15, 16), key=abs)]
        inside = [row for row in candidates if TOP <= row <= BOTTOM] or [y]
        free = [
            row
            for row in inside
            if not any(_on_number(x, row, *number) for number in taken)
            and not any(_on_point(x, row, *point) for point in places)
        ]
        taken.append((x, (free or inside)[0]))
    return [row for _, row in taken]


def _on_number(x: float, y: float, other_x: float, other_y: float) -> bool:
    return abs(x - other_x) / 100 * _NARROW < _LABEL_WIDTH and abs(y - other_y) < _LABEL_HEIGHT


def _on_point(x: float, y: float, point_x: float, point_y: float) -> bool:
    """A number stands a few pixels right of its own point, whatever the width: what is there differs with the width."""
    nearest, farthest = (point_x - x) / 100 * _NARROW, (point_x - x) / 100 * _WIDE
    return farthest > 2 and nearest < _LABEL_WIDTH + 7 and abs(y - point_y) < _LABEL_HEIGHT - 3
