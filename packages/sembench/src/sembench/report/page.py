"""The page as a whole: one file that needs nothing from anywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from sembench.__about__ import __version__
from sembench.report.answers import render_answers
from sembench.report.comparison import Named, render_comparison
from sembench.report.headline import render_headline
from sembench.report.length import render_ttft_by_length
from sembench.report.load_curves import render_load_curves
from sembench.report.markup import Child, Html, el, join
from sembench.report.outcomes import render_engine_events, render_negative_controls, render_outcomes
from sembench.report.privacy import render_privacy
from sembench.report.run_identity import render_run_identity
from sembench.report.transforms import render_speed_against_quality, render_transforms
from sembench.schema import EngineSummary, InputError, Result, write_atomically

# Nothing is fetched and nothing runs, whatever text found its way onto the page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_REPLAY = (
    render_headline,
    render_ttft_by_length,
    render_speed_against_quality,
    render_transforms,
    render_outcomes,
    render_negative_controls,
    render_answers,
    render_load_curves,
    render_run_identity,
)
_OFFLINE = (render_headline, render_transforms, render_outcomes, render_negative_controls, render_run_identity)
_LOAD = (render_load_curves, render_run_identity)
_PRIVACY = (render_privacy, render_run_identity)


def write_report(
    results: Sequence[Result],
    path: Path,
    *,
    names: Sequence[str] | None = None,
    compare: bool = False,
    engine_summaries: Sequence[EngineSummary] = (),
) -> None:
    """Write one self-contained HTML page about these results; parent folders are made.

    ``names`` tells the results apart where there are several; ``compare`` puts them side by side first.
    """
    page = render_report(results, names=names, compare=compare, engine_summaries=engine_summaries)
    write_atomically(path, page)


def render_report(
    results: Sequence[Result],
    *,
    names: Sequence[str] | None = None,
    compare: bool = False,
    engine_summaries: Sequence[EngineSummary] = (),
) -> str:
    """The page's text. The same results give the same bytes."""
    if not results:
        raise InputError("a report needs at least one result")
    named = [Named(name, result) for name, result in zip(names or _numbered(results), results, strict=True)]
    parts: list[Child] = [render_comparison(named)] if compare and len(named) > 1 else []
    for n, one in enumerate(named, 1):
        parts.append(_result(one, f"r{n}-" if len(named) > 1 else ""))
    parts.append(render_engine_events(engine_summaries))
    return _document(_title(named), join(parts))


def _result(one: Named, prefix: str) -> Html:
    sections = {"offline": _OFFLINE, "load": _LOAD, "privacy": _PRIVACY}.get(one.result.run.kind, _REPLAY)
    heading = el("h2", one.name, class_="result-name", id=f"{prefix}result") if prefix else None
    return el("div", heading, *(part(one.result, prefix) for part in sections), class_="result")


def _title(named: Sequence[Named]) -> Html:
    if len(named) > 1:
        links = [el("li", el("a", one.name, href=f"#r{n}-result")) for n, one in enumerate(named, 1)]
        return el("header", el("h1", "SemBench report"), el("ul", *links, class_="contents"))
    run = named[0].result.run
    model = run.engine.get("model") or named[0].result.config.get("model")
    told = (
        run.kind,
        model,
        f"{run.manifest_items:,} items" if run.manifest_items is not None else None,
        _day(run.started_at),
    )
    return el(
        "header",
        el("h1", "SemBench report"),
        el("p", " · ".join(str(part) for part in told if part), class_="note"),
    )


def _document(header: Html, body: Html) -> str:
    style = resources.files("sembench.report").joinpath("style.css").read_text(encoding="utf-8")
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", "SemBench report"),
        Html(f"<style>\n{style}</style>"),
    )
    footer = el(
        "footer",
        f"Made with sembench {__version__}. “Not measured” is never zero; a rate stands with its counts; only what the "
        "backend confirmed is called reuse.",
    )
    page = el("html", head, el("body", header, el("main", body), footer), lang="en")
    return f"<!doctype html>\n{page}\n"


def _day(moment: str) -> str:
    return re.sub(r"T(\d\d:\d\d)(:\d\d(\.\d+)?)?(\+00:00|Z)$", r" \1 UTC", moment)


def _numbered(results: Sequence[Result]) -> list[str]:
    return [f"{n}: {result.run.kind}" for n, result in enumerate(results, 1)]
