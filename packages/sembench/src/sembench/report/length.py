"""TTFT by context length: cold, exact repeat and reuse, as medians by prompt-length band."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from sembench.report.figures import known, milliseconds, times
from sembench.report.markup import Child, Html, el, join, section, table
from sembench.report.svg import Axis, Tick, legend, line, marker, plot, spread_widely, whisker
from sembench.results.records import is_cold
from sembench.schema import RequestRecord, Result

SERIES = (("cold", "circle", "cold"), ("exact", "square", "exact repeat"), ("warm", "ring", "with reuse"))
_SMALLEST = 128


@dataclass(frozen=True)
class Band:
    upper: int
    """Prompt tokens up to and including this."""
    ttft: dict[str, list[float]]
    """By arm."""

    @property
    def label(self) -> str:
        return f"≤{_short(self.upper)}"


def render_ttft_by_length(result: Result, prefix: str) -> Html:
    bands = make_bands(result.requests)
    if not bands:
        told = "Not measured: no request has both a prompt length and a time to first token."
        return section(f"{prefix}length", "TTFT by context length", el("p", told, class_="missing"))
    note = (
        "Median time to first token by prompt length in tokens; the thin bars span the middle half. Negative controls, "
        "failed requests, and cold ones that were not proved cold are left out."
    )
    return section(f"{prefix}length", "TTFT by context length", el("p", note), _figure(bands), _table(bands))


def make_bands(records: Sequence[RequestRecord]) -> list[Band]:
    """Bands double in length; those at the ends without a request are left out."""
    found: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        usable = record.status == "ok" and not record.negative_control and record.prompt_tokens
        if record.arm == "cold" and not is_cold(record):
            continue
        if usable and known(record.ttft_ms) is not None and record.arm in {"cold", "exact", "warm"}:
            found[_upper(record.prompt_tokens or 0)][record.arm].append(record.ttft_ms or 0.0)
    if not found:
        return []
    bands, upper = [], min(found)
    while upper <= max(found):
        bands.append(Band(upper, dict(found.get(upper, {}))))
        upper *= 2
    return bands


def _upper(tokens: int) -> int:
    upper = _SMALLEST
    while upper < tokens:
        upper *= 2
    return upper


def _figure(bands: Sequence[Band]) -> Html:
    spans = {(band.upper, arm): _middle_half(values) for band in bands for arm, values in band.ttft.items()}
    ends = [end for span in spans.values() for end in span]
    axis = Axis.logarithm(ends) if spread_widely(ends) else Axis.from_zero(max(ends))
    centre = {band.upper: round(100 * (n + 0.5) / len(bands), 3) for n, band in enumerate(bands)}
    offset = {"cold": -1.2, "exact": 0.0, "warm": 1.2}
    marks: list[Child] = []
    for arm, shape, words in SERIES:
        points = []
        for band in bands:
            values = band.ttft.get(arm)
            if not values:
                continue
            x, (low, high) = round(centre[band.upper] + offset[arm], 3), spans[band.upper, arm]
            tip = f"{words}, {band.label} tokens: median {milliseconds(median(values))} of {len(values)}"
            marks.append(whisker(x, axis.y(low), axis.y(high), arm))
            points.append((x, axis.y(median(values)), tip))
        marks.append(line([(x, y) for x, y, _ in points], arm))
        marks += [marker(x, y, arm, shape, tip) for x, y, tip in points]
    present = [entry for entry in SERIES if any(entry[0] in band.ttft for band in bands)]
    ticks = [Tick(centre[band.upper], band.label) for band in bands]
    drawing = plot(
        marks,
        y=axis,
        x_ticks=ticks,
        y_title="TTFT, ms, logarithmic" if axis.logarithmic else "TTFT, ms",
        x_title="prompt length, tokens",
        describe="Median time to first token by prompt length, for each arm",
    )
    return el("figure", legend(present), drawing)


def _table(bands: Sequence[Band]) -> Html:
    head = ("Prompt tokens", "Cold", "Exact repeat", "With reuse", "Cold / reuse")
    rows = []
    for band in bands:
        if not band.ttft:
            continue
        cold, warm = band.ttft.get("cold"), band.ttft.get("warm")
        ratio = median(cold) / median(warm) if cold and warm and median(warm) > 0 else None
        cells = [_median(band.ttft.get(arm)) for arm in ("cold", "exact", "warm")]
        label = f"{band.upper // 2 + 1:,} to {band.upper:,}" if band.upper > _SMALLEST else f"up to {band.upper:,}"
        rows.append((label, *cells, times(ratio)))
    return table(head, rows, class_="figures")


def _median(values: Sequence[float] | None) -> Html | str:
    if not values:
        return milliseconds(None)
    return join((milliseconds(median(values)), " ", el("span", f"n={len(values):,}", class_="of")))


def _middle_half(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def _short(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens >= 1024 else str(tokens)
