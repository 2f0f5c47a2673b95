"""Who ran what, where: what a reader needs to repeat the run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from sembench.report.markup import Child, Html, el, join, section
from sembench.schema import Result

_TOLD_NOT = el("span", "not told", class_="missing")


def render_run_identity(result: Result, prefix: str) -> Html:
    run = result.run
    rows: list[tuple[str, Child]] = [
        ("Kind", run.kind),
        ("Started", run.started_at),
        ("Finished", run.finished_at or el("span", "did not finish", class_="missing")),
        ("Manifest", run.manifest),
        ("Manifest sha256", el("code", run.manifest_sha256) if run.manifest_sha256 else None),
        ("Manifest items", None if run.manifest_items is None else f"{run.manifest_items:,}"),
        ("Seed", run.seed),
        ("Engine", _words(run.engine)),
        ("Serve command", el("pre", run.serve_command) if run.serve_command else None),
        ("Command", el("pre", shlex.join(run.command))),
        ("Versions", _words(run.versions)),
        ("Host", _words(run.host)),
        ("Configuration", _words(result.config)),
    ]
    if result.engine_window:
        rows.append(("Engine counters", _words(dict(flatten(result.engine_window)))))
    entries = [join((el("dt", name), el("dd", _TOLD_NOT if value is None else value))) for name, value in rows]
    return section(f"{prefix}identity", "Run identity", el("dl", *entries, class_="identity"))


def flatten(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Nested names joined with dots."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def describe_value(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "not told" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def _words(values: Mapping[str, Any]) -> Child:
    if not values:
        return None
    return el(
        "ul", *(el("li", el("span", name, class_="of"), " ", describe_value(value)) for name, value in flatten(values))
    )
