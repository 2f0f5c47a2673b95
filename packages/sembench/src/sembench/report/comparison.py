"""Several results side by side, or the reason why they cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sembench.load.point import LoadPoint
from sembench.report.figures import NOT_MEASURED, milliseconds, number
from sembench.report.headline import group_rows
from sembench.report.load_curves import read_load_points
from sembench.report.markup import Child, Html, el, join, section, table
from sembench.report.run_identity import describe_value, flatten
from sembench.schema import Result

# What differs between any two runs and says nothing about them.
_ALWAYS_DIFFERENT = ("started_at", "finished_at", "command", "manifest")


@dataclass(frozen=True)
class Named:
    name: str
    result: Result


def render_comparison(named: Sequence[Named]) -> Html:
    why_not = why_not_comparable(named)
    if why_not:
        return section(
            "comparison",
            "Comparison",
            el("p", el("strong", "Not comparable. "), why_not, class_="refused"),
            table(("Result", "Manifest", "Manifest sha256"), [_manifest_row(one) for one in named]),
        )
    return section("comparison", "Comparison", *_side_by_side(named), *_what_differs(named))


def why_not_comparable(named: Sequence[Named]) -> str | None:
    """Why a table of these would mislead; None where it would not."""
    unknown = [one.name for one in named if one.result.run.manifest_sha256 is None]
    if unknown:
        return f"The manifest of {', '.join(unknown)} is not known, so nothing shows that the same items were measured."
    if len({one.result.run.manifest_sha256 for one in named}) > 1:
        return "The results come from different manifests: their items differ, and so would their figures."
    items = {frozenset(record.item_id for record in one.result.requests) for one in named if one.result.requests}
    if len(items) > 1:
        counts = ", ".join(f"{one.name} {len({r.item_id for r in one.result.requests}):,}" for one in named)
        return f"The results measured different items of the same manifest ({counts})."
    kinds = {one.result.run.kind == "load" for one in named}
    return "Load results and replays have no figure in common." if len(kinds) > 1 else None


def _side_by_side(named: Sequence[Named]) -> list[Child]:
    if named[0].result.run.kind == "load":
        return [_load_table(named)]
    # Rows by group and name: a kind of result that does not know a row has not measured it.
    columns = [{(title, row.name): row for title, rows in group_rows(one.result) for row in rows} for one in named]
    order = list(dict.fromkeys(key for column in columns for key in column))
    body = []
    for key in order:
        found = [column.get(key) for column in columns]
        cells = [_cell(row.value, row.made_of) if row else _cell("no such figure", None) for row in found]
        body.append((key[1], *cells))
    return [table(("Measure", *(one.name for one in named)), body, class_="figures compare")]


def _load_table(named: Sequence[Named]) -> Html:
    """Points that any of the results has, in the order of the first that has it."""
    columns = [{(p.mode, p.level, p.reuse_share): p for p in read_load_points(one.result) or ()} for one in named]
    rows = []
    for key in dict.fromkeys(key for column in columns for key in column):
        mode, level, share = key
        name = f"{level:g} {'in flight' if mode == 'closed' else 'arrivals/s'}, reuse share {share:g}"
        rows.append((name, *(_load_cell(column.get(key)) for column in columns)))
    return table(("TTFT, median", *(one.name for one in named)), rows, class_="figures compare")


def _load_cell(point: LoadPoint | None) -> Html:
    if point is None:
        return NOT_MEASURED
    tokens = f"{number(point.output_tokens_per_s)} tokens/s, {point.ok:,} of {point.requests:,} answered"
    return _cell(milliseconds(point.ttft_ms.p50), tokens)


def _cell(value: Html | str, made_of: Child) -> Html:
    return join((value, " ", el("span", made_of, class_="of") if made_of else None))


def _what_differs(named: Sequence[Named]) -> list[Child]:
    described = [_settings(one.result) for one in named]
    names = sorted({name for settings in described for name in settings})
    rows = []
    for name in names:
        values = [settings.get(name) for settings in described]
        if any(value != values[0] for value in values):
            rows.append((el("code", name), *(describe_value(value) for value in values)))
    if not rows:
        return [el("p", "The runs tell no difference in settings, versions, engine or host.", class_="note")]
    return [el("h3", "What else differs between the runs"), table(("Setting", *(one.name for one in named)), rows)]


def _settings(result: Result) -> dict[str, object]:
    run = result.run.model_dump(exclude=set(_ALWAYS_DIFFERENT))
    return dict(flatten({**run, "config": result.config}))


def _manifest_row(one: Named) -> tuple[Child, ...]:
    run = one.result.run
    return one.name, run.manifest or "not told", el("code", run.manifest_sha256 or "not told")
