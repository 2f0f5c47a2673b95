"""A few answers side by side, chosen by rule and not by hand."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from sembench.report.figures import known, number, percent
from sembench.report.markup import Html, el, join, section
from sembench.results.records import is_cold
from sembench.schema import RequestRecord, Result

_WORST, _SHOWN, _CHARACTERS = 2, 6, 600
_WORD = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True)
class AnswerPair:
    cold: RequestRecord
    warm: RequestRecord

    @property
    def distance(self) -> tuple[float, float]:
        """Larger is farther apart: by wording where it was scored, then by divergence."""
        likeness, kl = known(self.warm.quality.cold_rouge_l), known(self.warm.quality.kl_mean)
        if likeness is None:
            likeness = 1.0 if self.cold.output == self.warm.output else 0.0
        return 1 - likeness, kl or 0.0


def render_answers(result: Result, prefix: str) -> Html:
    anchor, title, pairs = f"{prefix}answers", "Answers side by side", find_pairs(result)
    if not pairs:
        told = "Not measured: the result keeps no answers of both a cold and a warm request."
        return section(anchor, title, el("p", told, class_="missing"))
    shown = choose_pairs(pairs)
    same = sum(pair.cold.output == pair.warm.output for pair in pairs)
    note = (
        f"{same:,} of {len(pairs):,} answers with reuse are the cold answer, character for character. Shown are the "
        f"{min(_WORST, len(shown))} that differ most, then the first of each transform. Words that differ are marked."
    )
    return section(anchor, title, el("p", note), *(_side_by_side(pair) for pair in shown))


def find_pairs(result: Result) -> list[AnswerPair]:
    arms: dict[str, dict[str, RequestRecord]] = defaultdict(dict)
    for record in result.requests:
        may_stand = record.status == "ok" if record.arm != "cold" else is_cold(record)
        if may_stand and record.output is not None:
            arms[record.item_id].setdefault(record.arm, record)
    return [AnswerPair(found["cold"], found["warm"]) for found in arms.values() if {"cold", "warm"} <= set(found)]


def choose_pairs(pairs: list[AnswerPair]) -> list[AnswerPair]:
    worst = sorted(pairs, key=lambda pair: pair.distance, reverse=True)[:_WORST]
    transforms = {pair.warm.transform for pair in worst}
    shown = list(worst)
    for pair in pairs:
        if len(shown) < _SHOWN and pair.warm.transform not in transforms and pair not in shown:
            transforms.add(pair.warm.transform)
            shown.append(pair)
    return shown


def _side_by_side(pair: AnswerPair) -> Html:
    cold, warm = pair.cold.output or "", pair.warm.output or ""
    if cold == warm:
        shown = el("div", el("h4", "Cold and with reuse, the same"), el("pre", cold[:_CHARACTERS], _cut(cold)))
    else:
        left, right = mark_differences(cold[:_CHARACTERS], warm[:_CHARACTERS])
        shown = el(
            "div",
            el("div", el("h4", "Cold"), el("pre", left, _cut(cold))),
            el("div", el("h4", "With reuse"), el("pre", right, _cut(warm))),
            class_="two",
        )
    title = el("h3", pair.warm.transform, " ", el("code", pair.warm.item_id))
    return el("article", title, el("p", ", ".join(_facts(pair.warm)), class_="note"), shown, class_="answer")


def mark_differences(left: str, right: str) -> tuple[Html, Html]:
    """Both texts, with the words that only one of them has in ``mark``."""
    a, b = _WORD.findall(left), _WORD.findall(right)
    # Compared without the space behind a word, so that a line broken elsewhere is no difference.
    matcher = SequenceMatcher(None, [word.strip() for word in a], [word.strip() for word in b], autojunk=False)
    codes = matcher.get_opcodes()
    return (
        join(_piece("".join(a[i:j]), tag) for tag, i, j, _, _ in codes),
        join(_piece("".join(b[i:j]), tag) for tag, _, _, i, j in codes),
    )


def _piece(words: str, tag: str) -> Html | str:
    if tag == "equal" or not words.strip():
        return words
    bare = words.rstrip()
    return join((el("mark", bare), words[len(bare) :]))


def _facts(record: RequestRecord) -> Iterator[str]:
    quality = record.quality
    if record.confirmed_tokens is not None and record.prompt_tokens:
        yield f"{record.confirmed_tokens:,} of {record.prompt_tokens:,} prompt tokens reused"
    if record.outcome:
        yield record.outcome + (f" ({record.decline_reason})" if record.decline_reason else "")
    if known(quality.kl_mean) is not None:
        yield f"KL {number(quality.kl_mean)}"
    if known(quality.top1) is not None:
        yield f"top-1 {percent(quality.top1)}"
    if known(quality.cold_rouge_l) is not None:
        yield f"ROUGE-L against cold {number(quality.cold_rouge_l)}"
    if quality.passed is not None:
        yield "answer passes" if quality.passed else "answer does not pass"


def _cut(answer: str) -> Html | None:
    if not answer:
        return el("span", "(empty)", class_="missing")
    return el("span", f" … {len(answer):,} characters in all", class_="missing") if len(answer) > _CHARACTERS else None
