"""Plots as inline SVG that keeps its text size at any width: x is in percent, y in pixels.

Colours come from the page's classes, so that a plot follows the light, dark and print styles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sembench.report.figures import superscript
from sembench.report.markup import Child, Html, el, join

HEIGHT = 240.0
TOP, BOTTOM = 10.0, HEIGHT - 26.0


@dataclass(frozen=True)
class Axis:
    """From values to places. Ticks lie inside the range; a logarithmic one needs values above 0."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    @classmethod
    def from_zero(cls, highest: float) -> Axis:
        step = _nice_step(highest / 4 if highest > 0 else 0.25)
        steps = max(1, math.ceil(highest / step - 1e-9))
        return cls(0.0, steps * step, tuple(step * n for n in range(steps + 1)))

    @classmethod
    def logarithm(cls, values: Sequence[float]) -> Axis:
        """Bounds at 1, 2 or 5 times a power of ten; ticks there too where they are few, else at the powers."""
        lowest, highest = min(values), max(values)
        decades = range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
        steps = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
        low = max((step for step in steps if step <= lowest), default=lowest)
        high = min((step for step in steps if step >= highest), default=highest)
        if low == high:
            low, high = low / 2, high * 2
        inside = [step for step in steps if low * 0.999 <= step <= high * 1.001]
        powers = [step for step in inside if step in steps[::3]]
        return cls(low, high, tuple(inside if len(inside) <= 5 else powers), logarithmic=True)

    def share(self, value: float) -> float:
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def y(self, value: float) -> float:
        return round(BOTTOM - self.share(value) * (BOTTOM - TOP), 2)

    def x(self, value: float, left: float = 4.0, right: float = 96.0) -> float:
        return round(left + self.share(value) * (right - left), 3)


def spread_widely(values: Sequence[float]) -> bool:
    """Whether a linear axis would squeeze the small ones together."""
    return min(values) > 0 and max(values) / min(values) > 20


def tick_label(value: float) -> str:
    if value and abs(value) < 0.001:
        mantissa, exponent = f"{value:.0e}".split("e")
        return f"{'' if mantissa == '1' else mantissa + '·'}10{superscript(int(exponent))}"
    shown = f"{value:,.4f}".rstrip("0").rstrip(".")
    return shown or "0"


@dataclass(frozen=True)
class Tick:
    x: float
    label: str


def plot(
    marks: Sequence[Child],
    *,
    y: Axis,
    x_ticks: Sequence[Tick],
    y_title: str,
    x_title: str,
    describe: str,
    unit: str = "",
) -> Html:
    """The y labels stand in a narrow column of their own; the rest takes the width that is left."""
    labels = [
        el("text", f"{tick_label(tick)}{unit}", x="100%", y=y.y(tick), dy="0.32em", text_anchor="end")
        for tick in y.ticks
    ]
    grid = [el("line", x1="0", x2="100%", y1=y.y(tick), y2=y.y(tick), class_="grid") for tick in y.ticks]
    grid.append(el("line", x1="0", x2="100%", y1=BOTTOM, y2=BOTTOM, class_="base"))
    below = [
        el("text", tick.label, x=f"{tick.x}%", y=HEIGHT - 8, text_anchor="middle", class_="tick") for tick in x_ticks
    ]
    return el(
        "div",
        el("p", y_title, class_="axis-title"),
        el("svg", *labels, class_="y-axis", height=HEIGHT, aria_hidden="true"),
        el("svg", el("title", describe), *grid, *marks, *below, class_="area", height=HEIGHT, role="img"),
        el("p", x_title, class_="axis-title x-title"),
        class_="plot",
    )


def marker(x: float, y: float, series: str, shape: str, title: str) -> Html:
    """A mark whose shape also tells the series, for readers who do not see the colour."""
    tip = el("title", title)
    common = f"mark {series}"
    if shape == "square":
        # A rect cannot mix percent and pixels; a zero-length line with a square cap can.
        return el("line", tip, x1=f"{x}%", x2=f"{x}%", y1=y - 0.01, y2=y + 0.01, class_=f"{common} square")
    if shape == "ring":
        return el("circle", tip, cx=f"{x}%", cy=y, r=4.5, class_=f"{common} ring")
    return el("circle", tip, cx=f"{x}%", cy=y, r=4.5, class_=common)


def line(points: Sequence[tuple[float, float]], series: str) -> Html:
    """Straight pieces: a polyline cannot be given in percent."""
    return join(
        el("line", x1=f"{a}%", y1=b, x2=f"{c}%", y2=d, class_=f"line {series}") for (a, b), (c, d) in pairwise(points)
    )


def whisker(x: float, low: float, high: float, series: str) -> Html:
    return el("line", x1=f"{x}%", x2=f"{x}%", y1=low, y2=high, class_=f"whisker {series}")


def legend(entries: Sequence[tuple[str, str, str]]) -> Html:
    """(series, shape, words) for each."""
    keys = []
    for series, shape, words in entries:
        sample = el("svg", marker(50, 8, series, shape, words), class_="key", width=18, height=16, aria_hidden="true")
        keys.append(el("li", sample, words))
    return el("ul", *keys, class_="legend")


def _nice_step(rough: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(rough))
    return float(next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough * 0.999999))
