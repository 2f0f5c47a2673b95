"""Serve the demo's prompts cold and with reuse, print the table, write the report."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from zlib import crc32

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from sembench.demo.report import write_report
from sembench.demo.text import Prompt, donor_prompts, recipient_prompts
from semblend_core import OutcomeKind, Settings, create_provider
from semblend_core.testing import TokenEngine

_WORD_OR_SPACE = re.compile(r"\w+|\s|[^\w\s]")


@dataclass(frozen=True)
class DemoRow:
    label: str
    prompt_tokens: int
    cold_computed: int
    """Tokens an engine with prefix caching alone computes."""
    exact_prefix: int
    reused: int | None
    """Tokens of relocated KV that the backend confirmed; None where nothing was."""
    computed: int
    donors: int
    outcome: str


def run_demo(output_dir: Path, seed: int) -> list[DemoRow]:
    output_dir.mkdir(parents=True, exist_ok=True)
    console = Console()
    engine, stock = _new_engine(), _new_engine()
    for prompt in track(donor_prompts(seed), "serving donors", console=console, transient=True):
        engine.serve(encode(prompt.text))
        stock.serve(encode(prompt.text), reuse=False)
    engine.settle()
    recipients = track(recipient_prompts(seed), "serving recipients", console=console, transient=True)
    rows = [_serve(engine, stock, prompt) for prompt in recipients]
    engine.check_integrity()

    (output_dir / "demo.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    report = write_report(rows, output_dir / "report.html")
    console.print(_table(rows))
    console.print(
        "Tokens, not milliseconds: the engine model runs the real provider, contract and accounting without a neural "
        "network.\nOnly what the backend confirmed counts as reused; similar but different tokens are never reused."
    )
    console.print(f"Report: {report.resolve()}")
    return rows


def encode(text: str) -> list[int]:
    """Words, spaces and marks to stable ids."""
    return [crc32(piece.encode()) & 0x7FFFFFFF for piece in _WORD_OR_SPACE.findall(text)]


def _new_engine() -> TokenEngine:
    # A screen full of rows must not depend on how busy the machine is, so lookups get all the time they need.
    settings = Settings(embedder="none", lookup_budget_ms=10_000.0)
    return TokenEngine(create_provider(settings, engine="sembench-demo"))


def _serve(engine: TokenEngine, stock: TokenEngine, prompt: Prompt) -> DemoRow:
    tokens = encode(prompt.text)
    cold = stock.serve(tokens, reuse=False)
    warm = engine.serve(tokens)
    confirmed = warm.outcome.confirmed_tokens
    used_plan = warm.plan if warm.outcome.kind is OutcomeKind.MATERIALIZED else None
    return DemoRow(
        label=prompt.label,
        prompt_tokens=len(tokens),
        cold_computed=len(tokens) - cold.exact_prefix_tokens,
        exact_prefix=warm.exact_prefix_tokens,
        reused=confirmed,
        computed=len(tokens) - warm.exact_prefix_tokens - (confirmed or 0),
        donors=len(used_plan.donor_ids) if used_plan else 0,
        outcome=warm.outcome.kind.value + (f": {warm.outcome.reason.value}" if warm.outcome.reason else ""),
    )


def _table(rows: list[DemoRow]) -> Table:
    title = "Tokens computed in prefill: prefix caching alone (stock) against SemBlend"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0), pad_edge=False)
    table.add_column("prompt", no_wrap=True)
    for heading in ("tokens", "stock", "SemBlend", "exact", "reused", "donors"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("outcome", min_width=18)
    for row in rows:
        reused = "-" if row.reused is None else str(row.reused)
        figures = (row.prompt_tokens, row.cold_computed, row.computed, row.exact_prefix, reused, row.donors)
        table.add_row(row.label, *(str(figure) for figure in figures), row.outcome)
    return table
