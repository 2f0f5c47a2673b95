"""Controls: nothing may be reused, because the names and figures are others or the donor is a stranger."""

from __future__ import annotations

import re
from collections.abc import Callable

from sembench.manifests import names
from sembench.manifests.draws import Draws
from sembench.manifests.prompts import other_wording, question_last
from sembench.manifests.source import Fact, SourceDocument, Swapped
from sembench.manifests.transforms.draft import Context, DonorDraft, Draft, NotPossible

_WORD_OR_NUMBER = re.compile(r"\b(?:[A-Z][a-z]{2,}|\d{2,})\b")
_NAME_INSIDE = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]{2,}\b")
"""A capital inside a sentence. At its start any word has one."""
_CALENDAR = frozenset((*names.MONTHS, *names.WEEKDAYS))


def entity_swap_control(source: SourceDocument, context: Context) -> list[Draft]:
    """The donor reads like the recipient, and each of its names and figures is another."""
    swapped = source.swapped or swap_entities(source, context.draws)
    if swapped is None:
        raise NotPossible("no names or figures to exchange")
    scored, other = source.facts[0], swapped.facts[0]
    wrong = [answer for answer in other.answers if answer not in scored.answers]
    donor = question_last(source, swapped.document, other.question)
    return [
        Draft(
            [DonorDraft(donor, "other names and figures", source, {"derived": "entity_swap"})],
            question_last(source, source.document, scored.question),
            scored.question,
            scored.answers,
            metadata={"control": "entity_swap", "donor_answers": wrong},
        )
    ]


def negative_control(source: SourceDocument, context: Context) -> list[Draft]:
    """The donor is of another domain and is asked in other words: whatever is reused of it is a fault."""
    stranger = context.stranger(source)
    scored = source.facts[0]
    donor = other_wording(stranger, stranger.document, stranger.facts[0].question)
    return [
        Draft(
            [DonorDraft(donor, "another domain", stranger)],
            question_last(source, source.document, scored.question),
            scored.question,
            scored.answers,
            negative_control=True,
            metadata={"control": "negative", "donor_answers": list(stranger.facts[0].answers)},
        )
    ]


def swap_entities(source: SourceDocument, draws: Draws) -> Swapped | None:
    """The document with each name and each figure exchanged, the same one always for the same; None if it has none."""
    exchanged = _exchange(source.document, draws)
    document = exchanged(source.document)
    if document == source.document:
        return None
    facts = [
        Fact(exchanged(fact.question), exchanged(fact.paraphrase), tuple(exchanged(answer) for answer in fact.answers))
        for fact in source.facts
    ]
    return Swapped(document, tuple(facts))


def _exchange(text: str, draws: Draws) -> Callable[[str], str]:
    known = set(_NAME_INSIDE.findall(text)) - _CALENDAR
    present = set(_WORD_OR_NUMBER.findall(text))
    others: dict[str, str] = {}

    def other(match: re.Match[str]) -> str:
        word = match.group()
        if word[0].isalpha() and word not in known:
            return word
        if word not in others:
            others[word] = _unused(word, present, draws)
        return others[word]

    return lambda part: _WORD_OR_NUMBER.sub(other, part)


def _unused(word: str, present: set[str], draws: Draws) -> str:
    """A name or number that the text does not have, so that no fact of it survives by accident."""
    candidate = word
    for _ in range(50):
        candidate = names.surname(draws) if word[0].isalpha() else draws.digits(min(len(word), 15)) + word[15:]
        if candidate not in present:
            return candidate
    return candidate
