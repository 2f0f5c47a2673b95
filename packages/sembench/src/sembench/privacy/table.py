"""The figures as a table that a terminal shows and a markdown page can hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import MARKDOWN
from rich.table import Table

from sembench.privacy.figures import PrivacyFigures
from sembench.schema import Interval, Rate
from sembench.terminal import table_console

_WIDTH = 150
_HEAD = (
    "arm",
    "n",
    "reused",
    "mean rank",
    "95%",
    "first",
    "first, no other donors",
    "gain, nats",
    "shift, nats",
    "named",
    "cold",
)


def print_figures(figures: Sequence[PrivacyFigures], output: Path) -> None:
    """One table per transform."""
    console = table_console(_WIDTH)
    for transform in dict.fromkeys(one.transform for one in figures):
        part = [one for one in figures if one.transform == transform]
        console.print(
            f"\n{transform}: the rank of what the donor's opening said, of {part[0].candidates} candidates; "
            f"chance {part[0].chance_rank:g}, {part[0].sources} documents\n",
            highlight=False,
        )
        table = Table(*_HEAD, box=MARKDOWN)
        for one in part:
            table.add_row(*_cells(one))
        console.print(table)
    console.print(f"Result: {output}", soft_wrap=True, highlight=False)


def _cells(one: PrivacyFigures) -> tuple[str, ...]:
    return (
        one.arm,
        str(one.trials),
        "-" if one.reused_tokens is None else f"{one.reused_tokens:.0f}",
        f"{one.mean_rank.value:.2f}",
        _bounds(one.mean_rank),
        _counts(one.ranked_first),
        _counts(one.cold_ranked_first),
        f"{one.gain_nats.value:+.2f}",
        f"{one.shift_nats.value:+.2f}",
        _counts(one.named),
        _counts(one.named_cold),
    )


def _bounds(interval: Interval) -> str:
    return "-" if interval.low is None else f"{interval.low:.2f} to {interval.high:.2f}"


def _counts(rate: Rate | None) -> str:
    return "-" if rate is None else f"{rate.numerator:.0f} of {rate.denominator:.0f}"
