"""The demo's report: one HTML page that needs nothing from anywhere."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sembench.demo.run import DemoRow

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>SemBlend demo</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c2430 }}
.row {{ margin: 1.2rem 0 }} .label {{ display: flex; justify-content: space-between; flex-wrap: wrap; gap: .5rem }}
.bar {{ display: flex; height: 1.1rem; border-radius: .3rem; overflow: hidden; background: #e8ebf0; margin: .2rem 0 }}
.exact {{ background: #7d8ba1 }} .reused {{ background: #2a8f6d }} .computed {{ background: #d9822b }}
.key span {{ display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem; margin: 0 .3rem 0 1rem }}
small {{ color: #5a6675 }} @media print {{ .bar {{ print-color-adjust: exact; -webkit-print-color-adjust: exact }} }}
</style></head><body>
<h1>What is computed again?</h1>
<p>Each prompt is served by an engine with prefix caching alone (upper bar) and with SemBlend (lower bar). The engine
model runs the real provider and contract and no neural network: these are tokens, not milliseconds.</p>
<p class="key"><span class="exact"></span>exact prefix <span class="reused"></span>reused, confirmed
<span class="computed"></span>computed</p>
{rows}</body></html>
"""


def write_report(rows: list[DemoRow], path: Path) -> Path:
    path.write_text(_PAGE.format(rows="\n".join(_row(row) for row in rows)))
    return path


def _row(row: DemoRow) -> str:
    reused = row.reused or 0
    stock_exact = row.prompt_tokens - row.cold_computed
    return (
        f'<div class="row"><div class="label"><b>{escape(row.label)}</b>'
        f"<small>{row.prompt_tokens} tokens, {escape(row.outcome)}</small></div>"
        f"{_bar(row.prompt_tokens, stock_exact, 0, row.cold_computed)}"
        f"{_bar(row.prompt_tokens, row.exact_prefix, reused, row.computed)}"
        f"<small>computed {row.cold_computed} &rarr; {row.computed}</small></div>"
    )


def _bar(total: int, exact: int, reused: int, computed: int) -> str:
    parts = (("exact", exact), ("reused", reused), ("computed", computed))
    return (
        '<div class="bar">'
        + "".join(
            f'<div class="{name}" style="width:{100 * count / total:.2f}%" title="{name} {count}"></div>'
            for name, count in parts
            if count
        )
        + "</div>"
    )
