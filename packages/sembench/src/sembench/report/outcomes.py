"""What became of the requests, and why reuse was declined."""

from __future__ import annotations

from collections.abc import Mapping

from sembench.report.figures import percent
from sembench.report.markup import Html, el, join, section, table
from sembench.schema import Result


def outcomes(result: Result, prefix: str) -> Html:
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
