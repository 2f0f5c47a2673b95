"""What became of the requests: outcomes, reasons for declining, negative controls, and what the engines' logs say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sembench.report.figures import NOT_MEASURED, count, milliseconds, percent, times
from sembench.report.headline import FigureRow, control_rows
from sembench.report.markup import Child, Html, el, join, section, table
from sembench.results.records import is_cold
from sembench.schema import EngineSummary, Paired, RequestRecord, Result

_SHOWN = 12
_ROWS = (
    ("Donors registered", "donors_registered"),
    ("Lookups", "lookups"),
    ("Lookups that hit", "lookup_hits"),
    ("Loads advertised", "loads_advertised"),
    ("Tokens advertised", "advertised_tokens"),
    ("Materialisations", "materialization_events"),
    ("Tokens materialised", "materialized_tokens"),
    ("Bytes materialised", "materialized_bytes"),
    ("Tokens retrieved exactly", "exact_retrieved_tokens"),
    ("Donors evicted", "evicted_donors"),
    ("Donors wanted again after they went", "regretted_donors"),
    ("Tokens of these, about", "regretted_tokens"),
    ("Errors", "errors"),
    ("Event lines not readable", "unparsed_lines"),
)


def render_outcomes(result: Result, prefix: str) -> Html:
    aggregate = result.aggregate
    body = [
        el("h3", "Outcomes"),
        share_table("Outcome", aggregate.outcomes, "The result tells no outcomes."),
        el("h3", "Reasons for declining"),
        share_table("Reason", aggregate.decline_reasons, "No request was declined with a reason."),
    ]
    if result.paired is not None and result.paired.dropped:
        body += [el("h3", "Pairs left out"), share_table("Why", result.paired.dropped, "")]
    return section(f"{prefix}outcomes", "Outcomes and decline reasons", *body)


def share_table(name: str, counts: Mapping[str, int], nothing: str) -> Html:
    """Counts, largest first, each with its share of their sum and a bar as long as the share."""
    whole = sum(counts.values())
    if not whole:
        return el("p", nothing, class_="missing")
    rows = []
    for word, found in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])):
        share = found / whole
        bar = el("span", el("span", style=f"width:{100 * share:.2f}%"), class_="bar", aria_hidden="true")
        rows.append((word, join((percent(share), " ", el("span", f"{found:,} of {whole:,}", class_="of"))), bar))
    return table((name, "Share", ""), rows, class_="shares")


def render_negative_controls(result: Result, prefix: str) -> Html:
    anchor, title = f"{prefix}controls", "Negative controls"
    records = [record for record in result.requests if record.negative_control]
    rows = control_rows(result.aggregate, result.paired or Paired(clean_pairs=0))
    if not records and all(row.value == NOT_MEASURED for row in rows):
        told = "Not measured: the result has no negative control, so it cannot show that unrelated prompts stay cold."
        return section(anchor, title, el("p", told, class_="missing"))
    note = (
        "The donor of a control is of another domain: a block that is reused here is wrong, and a speed-up here comes "
        "from something other than reuse."
    )
    return section(anchor, title, el("p", note), _summary(rows), *_each(records))


def _summary(rows: list[FigureRow]) -> Html:
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


def render_engine_events(summaries: Sequence[EngineSummary]) -> Html | None:
    if not summaries:
        return None
    head = ("Event", *(summary.engine for summary in summaries))
    rows = [(name, *(count(getattr(summary, field)) for summary in summaries)) for name, field in _ROWS]
    # A row that no engine tells says nothing.
    told = [row for row in rows if any(cell != NOT_MEASURED for cell in row[1:])]
    reasons: list[Child] = []
    for summary in summaries:
        if summary.declined:
            reasons += [
                el("h3", f"{summary.engine}: reasons for declining"),
                share_table("Reason", summary.declined, ""),
            ]
        if summary.error_samples:
            samples = [el("li", el("code", sample)) for sample in summary.error_samples[:5]]
            reasons += [el("h3", f"{summary.engine}: errors"), el("ul", *samples)]
    note = "Counted from the engines' own events. Only materialised tokens are reuse; a lookup that hits is not."
    return section("engine-events", "Engine events", el("p", note), table(head, told, class_="figures"), *reasons)
