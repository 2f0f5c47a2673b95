"""Exchanges the names and figures of a text that was not generated here."""

from __future__ import annotations

import re
from collections.abc import Callable

from sembench.manifests import names
from sembench.manifests.draws import Draws
from sembench.manifests.source import Fact, Source, Swapped

_WORD_OR_NUMBER = re.compile(r"\b(?:[A-Z][a-z]{2,}|\d{2,})\b")
_NAME_INSIDE = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]{2,}\b")
"""A capital inside a sentence. At its start any word has one."""
_CALENDAR = frozenset((*names.MONTHS, *names.WEEKDAYS))


def swap_entities(source: Source, draws: Draws) -> Swapped | None:
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
