"""The page as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from sembench.schema import Result, write_atomically


def write_report(results: Sequence[Result], path: Path) -> None:
    """Write one self-contained HTML page about these results; parent folders are made."""
    body = "".join(f"<pre>{escape(result.aggregate.model_dump_json(indent=1))}</pre>" for result in results)
    write_atomically(path, f"<!doctype html><meta charset='utf-8'><title>SemBench report</title>{body}")
