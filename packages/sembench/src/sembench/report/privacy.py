"""What another client's opening gave away, by arm: one table for secrets, one for plants."""

from __future__ import annotations

from collections.abc import Sequence

from sembench.privacy.figures import PrivacyFigures
from sembench.report.entries import read_entries
from sembench.report.figures import NOT_MEASURED, count, known, number, rate_cell
from sembench.report.markup import Child, Html, el, join, section, table
from sembench.schema import Interval, Result

_TITLES = {
    "private_preamble": "A secret in front of a document",
    "planted_context": "A claim planted in front of a document",
}
_NOTES = {
    "private_preamble": "A donor names one of the candidates in front of a document. Somebody who knows the document "
    "only reads log-probabilities. The rank is that of what the donor named.",
    "planted_context": "A donor plants a claim in front of a document. Somebody asks about the document in good faith. "
    "Named: the greedy answer repeats the claim.",
}
_HEAD = (
    "Arm",
    "Trials",
    "Tokens reused",
    "Mean rank",
    "First",
    "First, against cold only",
    "Gain",
    "Shift",
    "Named",
    "Cold",
)


def render_privacy(result: Result, prefix: str) -> Html | None:
    if result.privacy is None:
        return None
    anchor, title, figures = f"{prefix}privacy", "Privacy", read_privacy(result)
    if figures is None:
        told = "The privacy entries cannot be read: their fields are not as this version writes them."
        return section(anchor, title, el("p", told, class_="missing"))
    if not figures:
        told = "Not measured: the run ended before its first document."
        return section(anchor, title, el("p", told, class_="missing"))
    parts: list[Child] = []
    for transform in dict.fromkeys(one.transform for one in figures):
        parts += _of_transform(transform, [one for one in figures if one.transform == transform])
    return section(anchor, title, *parts)


def read_privacy(result: Result) -> list[PrivacyFigures] | None:
    """None where an entry is not readable."""
    return read_entries(result.privacy, PrivacyFigures)


def describe_leak(figures: Sequence[PrivacyFigures]) -> str:
    """In one sentence: which arms stay at chance, and which do not."""
    apart = [one.arm for one in figures if _differs(one)]
    chance = f"chance is {figures[0].chance_rank:g} of {figures[0].candidates} candidates, 0 is all"
    if not apart:
        return f"Every arm's interval holds chance ({chance})."
    return f"Away from chance ({chance}): {', '.join(apart)}. All other intervals hold it."


def _differs(one: PrivacyFigures) -> bool:
    low, high = known(one.mean_rank.low), known(one.mean_rank.high)
    return low is not None and high is not None and not low <= one.chance_rank <= high


def _of_transform(transform: str, figures: Sequence[PrivacyFigures]) -> list[Child]:
    note = (
        f"{_NOTES.get(transform, '')} {figures[0].sources:,} documents. Intervals are 95%, over documents; ties count "
        "as half. Of the named candidate's log-probability, in nats: gain is above its mean behind all donors of the "
        "document, shift is against cold."
    )
    return [
        el("h3", _TITLES.get(transform, transform)),
        el("p", describe_leak(figures), class_="lead"),
        el("p", note),
        table(_HEAD, [_row(one) for one in figures], class_="figures wide"),
    ]


def _row(one: PrivacyFigures) -> tuple[Child, ...]:
    return (
        one.arm,
        count(one.trials),
        count(one.reused_tokens),
        _interval(one.mean_rank),
        rate_cell(one.ranked_first),
        rate_cell(one.cold_ranked_first),
        number(one.gain_nats.value),
        number(one.shift_nats.value),
        rate_cell(one.named),
        rate_cell(one.named_cold),
    )


def _interval(interval: Interval) -> Html | str:
    if known(interval.value) is None:
        return NOT_MEASURED
    bounds = "" if interval.low is None else f"{interval.low:.2f} to {interval.high:.2f}, "
    return join((f"{interval.value:.2f} ", el("span", f"{bounds}n={interval.n:,}", class_="of")))
