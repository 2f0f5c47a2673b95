"""Sentences from a grammar, in two steps: the wording is drawn first, the names and figures are put in afterwards.

The same wording with other names is then the hard control: a text that reads alike and whose every fact is another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sembench.manifests import names
from sembench.manifests.draws import Draws

_SLOT = re.compile(r"\{([a-z_]+)(?:#([a-z0-9]+))?\}")
_MONTHS = names.MONTHS
_CURRENCIES = ("EUR", "USD", "GBP", "CHF", "SEK", "CAD")


@dataclass(frozen=True)
class FactForm:
    """A sentence that states a fact, two ways to ask for it, and the answer. Tagged slots hold them together."""

    sentence: str
    question: str
    paraphrase: str
    answer: str


@dataclass(frozen=True)
class Domain:
    """A kind of document. Words in braces are its own rules, or slots for names and figures."""

    name: str
    noun: str
    """What a reader would call one document."""
    title: str
    headings: tuple[str, ...]
    """One of them starts each part."""
    sentences: tuple[str, ...]
    facts: tuple[FactForm, ...]
    rules: Mapping[str, tuple[str, ...]]
    part_length: tuple[int, int]
    """Fewest and most sentences of a part."""
    part_joint: str
    """What stands before a heading."""
    first_joint: str
    joint: str
    """What stands before the first sentence of a part, and between two; ``{line}`` numbers them all."""


@dataclass(frozen=True)
class Cast:
    """Who and what a source is about; nobody else takes part in it."""

    people: tuple[str, ...]
    firms: tuple[str, ...]
    systems: tuple[str, ...]
    sites: tuple[str, ...]

    @classmethod
    def drawn(cls, draws: Draws, size: int) -> Cast:
        """``size`` people, systems and places; firms are few, as they are in a file about one matter."""
        return cls(
            people=_different(names.person, draws, size),
            firms=_different(names.firm, draws, max(4, size // 2)),
            systems=_different(names.system, draws, size),
            sites=_different(names.site, draws, size),
        )


class Clock:
    """The time within a document: it only goes forward."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._milliseconds = draws.below(27 * 86_400_000)

    def stamp(self) -> str:
        """Day and minute, some hours after the one before."""
        self._milliseconds += self._draws.between(600_000, 40_000_000)
        days, rest = divmod(self._milliseconds, 86_400_000)
        minutes = rest // 60_000
        return f"{days % 28 + 1} {_MONTHS[days // 28 % 12]}, {minutes // 60:02}:{minutes % 60:02}"

    def tick(self) -> str:
        """Time of day to the millisecond, seconds after the one before."""
        self._milliseconds += self._draws.between(7, 90_000)
        seconds, thousandths = divmod(self._milliseconds % 86_400_000, 1000)
        return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{thousandths:03}"


def expand(text: str, rules: Mapping[str, Sequence[str]], draws: Draws) -> str:
    """The wording: every ``{rule}`` replaced by one of its alternatives; slots for names and figures stay."""

    def alternative(match: re.Match[str]) -> str:
        name, tag = match.group(1), match.group(2)
        if name not in rules:
            return match.group(0)
        if tag is not None:
            raise ValueError(f"rule {name!r} cannot be tagged: only names and figures keep their value")
        return expand(draws.pick(rules[name]), rules, draws)

    return _SLOT.sub(alternative, text)


class Filler:
    """Puts names and figures into wordings. ``{person#a}`` keeps its value as long as the same filler is used."""

    def __init__(self, cast: Cast, draws: Draws, clock: Clock) -> None:
        self._draws = draws
        self._bound: dict[str, str] = {}
        self._used: set[str] = set()
        self._kinds: dict[str, Callable[[], str]] = {
            "person": lambda: self._new(cast.people),
            "firm": lambda: self._new(cast.firms),
            "system": lambda: self._new(cast.systems),
            "site": lambda: self._new(cast.sites),
            "stamp": clock.stamp,
            "tick": clock.tick,
        }

    def fill(self, wording: str) -> str:
        return _SLOT.sub(self._value, wording)

    def _value(self, match: re.Match[str]) -> str:
        kind, tag = match.group(1), match.group(2)
        if tag is None:
            return self._drawn(kind)
        if match.group(0) not in self._bound:
            self._bound[match.group(0)] = self._drawn(kind)
        return self._bound[match.group(0)]

    def _drawn(self, kind: str) -> str:
        if kind in self._kinds:
            return self._kinds[kind]()
        if kind in FIGURES:
            return FIGURES[kind](self._draws)
        raise ValueError(f"{{{kind}}} is neither a rule nor a slot")

    def _new(self, pool: tuple[str, ...]) -> str:
        """Nobody is named twice in a sentence by accident."""
        name = self._draws.pick(pool)
        for _ in range(8):
            if name not in self._used:
                break
            name = self._draws.pick(pool)
        self._used.add(name)
        return name


def _amount(draws: Draws) -> str:
    return f"{draws.between(2, 98)},{draws.digits(3)}.{draws.between(10, 99)} {draws.pick(_CURRENCIES)}"


def _reference(draws: Draws) -> str:
    letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
    return f"{draws.pick(letters)}{draws.pick(letters)}-{draws.digits(6)}"


FIGURES: dict[str, Callable[[Draws], str]] = {
    "amount": _amount,
    "ref": _reference,
    "number": lambda draws: draws.digits(6),
    "count": lambda draws: str(draws.between(12, 989)),
    "few": lambda draws: str(draws.between(2, 11)),
    "days": lambda draws: str(draws.between(13, 119)),
    "percent": lambda draws: f"{draws.between(1, 38)}.{draws.between(1, 9)}%",
    "day": lambda draws: f"{draws.between(1, 28)} {draws.pick(_MONTHS)}",
    "date": lambda draws: f"{draws.between(1, 28)} {draws.pick(_MONTHS)} {draws.between(2019, 2031)}",
    "time": lambda draws: f"{draws.between(0, 23):02}:{draws.below(60):02}",
    "version": lambda draws: f"{draws.between(1, 19)}.{draws.between(0, 48)}.{draws.between(1, 97)}",
    "hex": lambda draws: f"{draws.between(0x100000, 0xFFFFFF):06x}",
    "ms": lambda draws: str(draws.between(104, 98_999)),
    "address": lambda draws: f"10.{draws.below(255)}.{draws.below(255)}.{draws.between(2, 254)}",
    "node": lambda draws: str(draws.between(1, 96)),
}


def _different(name: Callable[[Draws], str], draws: Draws, count: int) -> tuple[str, ...]:
    found: dict[str, None] = {}
    while len(found) < count:
        found[name(draws)] = None
    return tuple(found)
