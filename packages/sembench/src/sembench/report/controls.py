"""Negative controls: requests for which nothing may be reused."""

from __future__ import annotations

from collections import defaultdict

from sembench.report.figures import NOT_MEASURED, count, milliseconds, times
from sembench.report.headline import Row, controls
from sembench.report.markup import Child, Html, el, section, table
from sembench.results.records import is_cold
from sembench.schema import Paired, RequestRecord, Result

_SHOWN = 12


def negative_controls(result: Result, prefix: str) -> Html:
    anchor, title = f"{prefix}controls", "Negative controls"
    records = [record for record in result.requests if record.negative_control]
    rows = controls(result.aggregate, result.paired or Paired(clean_pairs=0))
    if not records and all(row.value == NOT_MEASURED for row in rows):
        told = "Not measured: the result has no negative control, so it cannot show that unrelated prompts stay cold."
        return section(anchor, title, el("p", told, class_="missing"))
    note = (
        "The donor of a control is of another domain: a block that is reused here is wrong, and a speed-up here comes "
        "from something other than reuse."
    )
    return section(anchor, title, el("p", note), _summary(rows), *_each(records))


def _summary(rows: list[Row]) -> Html:
    return table(("Measure", "Value", "Made of"), [(row.name, row.value, row.made_of) for row in rows])


def _each(records: list[RequestRecord]) -> list[Child]:
    """One line per control, those that reused something first."""
    arms: dict[str, dict[str, RequestRecord]] = defaultdict(dict)
    for record in records:
        arms[record.item_id][record.arm] = record
    if not arms:
        return []
    ordered = sorted(arms.items(), key=lambda entry: (-_confirmed(entry[1]), entry[0]))
    lines = [_line(item, found) for item, found in ordered[:_SHOWN]]
    head = ("Item", "Transform", "Outcome", "Tokens reused", "TTFT cold", "TTFT after donors", "Ratio")
    left = len(ordered) - len(lines)
    more = (
        el("p", f"{left:,} more are in the result file; those shown reused the most.", class_="note") if left else None
    )
    return [table(head, lines, class_="figures wide controls"), more]


def _line(item: str, found: dict[str, RequestRecord]) -> tuple[Child, ...]:
    warm, cold = found.get("warm") or found.get("offline"), found.get("cold")
    cold_ms = cold.ttft_ms if cold and is_cold(cold) else None
    warm_ms = warm.ttft_ms if warm else None
    outcome = warm.outcome if warm else None
    reason = f": {warm.decline_reason}" if warm and warm.decline_reason else ""
    any_record = next(iter(found.values()))
    return (
        el("code", item),
        any_record.transform,
        f"{outcome}{reason}" if outcome else NOT_MEASURED,
        count(warm.confirmed_tokens if warm else None),
        milliseconds(cold_ms),
        milliseconds(warm_ms),
        times(cold_ms / warm_ms if cold_ms is not None and warm_ms else None),
    )


def _confirmed(found: dict[str, RequestRecord]) -> int:
    return max((record.confirmed_tokens or 0 for record in found.values()), default=0)
