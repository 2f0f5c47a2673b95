"""What the engines' own logs say, beside the results."""

from __future__ import annotations

from collections.abc import Sequence

from sembench.report.figures import NOT_MEASURED, count
from sembench.report.markup import Child, Html, el, section, table
from sembench.report.outcomes import share_table
from sembench.schema import EngineSummary

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
    ("Errors", "errors"),
    ("Event lines not readable", "unparsed_lines"),
)


def engine_events(summaries: Sequence[EngineSummary]) -> Html | None:
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
