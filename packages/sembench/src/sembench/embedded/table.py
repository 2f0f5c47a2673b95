"""The replay on one screen: a line per transform or per item, as it is."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from sembench.schema import RequestRecord, Result
from sembench.schema.result import Arm
from sembench.terminal import table_console

Figure = Callable[[RequestRecord], float | None]
TABLE_WIDTH = 100
_NONE = "-"


@dataclass(frozen=True)
class TableLine:
    """Some items' records by arm, under one label."""

    label: str
    arms: dict[Arm, list[RequestRecord]]

    def median(self, arm: Arm, figure: Figure) -> float | None:
        known = [value for record in self.arms.get(arm, []) if (value := figure(record)) is not None]
        return statistics.median(known) if known else None

    def mean(self, arm: Arm, figure: Figure) -> float | None:
        known = [value for record in self.arms.get(arm, []) if (value := figure(record)) is not None]
        return statistics.fmean(known) if known else None

    @property
    def speedup(self) -> float | None:
        """Median over items of cold by warm."""
        cold = {record.item_id: record.ttft_ms for record in self.arms.get("cold", [])}
        ratios = [
            cold_ms / record.ttft_ms
            for record in self.arms.get("warm", [])
            if record.ttft_ms and (cold_ms := cold.get(record.item_id))
        ]
        return statistics.median(ratios) if ratios else None

    @property
    def outcome(self) -> str:
        found = [_outcome(record) for record in self.arms.get("warm", [])]
        return ", ".join(dict.fromkeys(found))


def _outcome(record: RequestRecord) -> str:
    if record.status == "error":
        return "error"
    words = {"materialized": "reuse", "exact_prefix": "prefix"}
    return words.get(record.outcome or "", (record.decline_reason or record.outcome or _NONE).replace("_", " "))


def group_records(result: Result, label: Callable[[RequestRecord], str]) -> list[TableLine]:
    """Records under the same label make a line, in the order of their first."""
    lines: dict[str, TableLine] = {}
    for record in result.requests:
        line = lines.setdefault(label(record), TableLine(label(record), {}))
        line.arms.setdefault(record.arm, []).append(record)
    return list(lines.values())


def build_table(lines: Iterable[TableLine], first_heading: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column(first_heading, no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("served\nby", min_width=8)
    for line in lines:
        table.add_row(line.label, *_figures(line), line.outcome)
    return table


_HEADINGS = (
    "prompt\ntokens",
    "cold\nms",
    "exact\nms",
    "reuse\nms",
    "speed-\nup",
    "reused\ntokens",
    "computed\ntokens",
    "KL to\ncold",
    "top-1\nequal",
)


def _figures(line: TableLine) -> Sequence[str]:
    return (
        _whole(line.median("warm", lambda record: record.prompt_tokens)),
        _whole(line.median("cold", lambda record: record.ttft_ms)),
        _whole(line.median("exact", lambda record: record.ttft_ms)),
        _whole(line.median("warm", lambda record: record.ttft_ms)),
        _shown(line.speedup, "{:.1f}x"),
        _whole(line.median("warm", lambda record: record.confirmed_tokens)),
        _whole(line.median("warm", lambda record: record.computed_tokens)),
        _small(line.mean("warm", lambda record: record.quality.kl_mean)),
        _shown(line.mean("warm", lambda record: record.quality.top1), "{:.3f}"),
    )


def _whole(value: float | None) -> str:
    return _shown(value, "{:,.0f}")


def _shown(value: float | None, form: str) -> str:
    return _NONE if value is None else form.format(value)


def _small(value: float | None) -> str:
    """Plain where it can be read so; powers of ten for what is rounding noise."""
    if value is None:
        return _NONE
    return f"{value:.5f}" if value >= 1e-5 or value == 0 else f"{value:.0e}"


def print_summary(result: Result, output: Path) -> None:
    """Medians and means by transform, then where the whole result is."""
    console = table_console(TABLE_WIDTH)
    console.print(build_table(group_records(result, lambda record: record.transform), "\ntransform"))
    failed = [record for record in result.requests if record.status == "error"]
    if failed:
        console.print(f"{len(failed)} of {len(result.requests)} requests failed, first: {failed[0].error}")
    console.print(f"Result: {output}", soft_wrap=True)
