"""Facts that are written into real text, what follows from them, and the questions about both."""

from __future__ import annotations

from dataclasses import dataclass

NAMES = (
    *("Alder", "Birch", "Cedar", "Dover", "Ember", "Fulton", "Garnet", "Hazel", "Ivory", "Juniper"),
    *("Kestrel", "Linden", "Maple", "Norfolk", "Orchid", "Piper", "Quarry", "Raven", "Sorrel", "Thistle"),
)
NOT_STATED = "not stated"
OR_NOT_STATED = f" If the text does not say, answer: {NOT_STATED}."


@dataclass(frozen=True, slots=True)
class Kind:
    """A fact with a figure, and a rule by which it decides something else."""

    fact: str
    question: str
    rule: str
    low: tuple[int, ...]
    high: tuple[int, ...]
    decides: str
    if_low: str
    if_high: str


KINDS = (
    Kind(
        "The deposit for the {name} hall is {figure} euros.",
        "What is the deposit for the {name} hall?",
        "A hall whose deposit is above 500 euros is booked at the front desk. Every other hall is booked online.",
        (120, 240, 360, 410),
        (620, 750, 880, 940),
        "Is the {name} hall booked at the front desk or online?",
        "online",
        "front desk",
    ),
    Kind(
        "The {name} bridge carries at most {figure} tons.",
        "How many tons does the {name} bridge carry at most?",
        "Lorries cross a bridge that carries more than 20 tons. At every other bridge they take the tunnel.",
        (6, 9, 12, 15),
        (28, 35, 46, 60),
        "At the {name} bridge, do lorries cross it or take the tunnel?",
        "tunnel",
        "cross",
    ),
    Kind(
        "The {name} archive keeps {figure} volumes.",
        "How many volumes does the {name} archive keep?",
        "An archive with more than 5000 volumes is open every day. Every other archive is open on Monday only.",
        (1400, 2300, 3100, 4200),
        (6200, 7500, 8100, 9400),
        "On which days is the {name} archive open?",
        "Monday",
        "every day",
    ),
    Kind(
        "The {name} ferry leaves at {figure} o'clock.",
        "At what time does the {name} ferry leave?",
        "Ferries that leave after 12 o'clock sail from the south pier. All others sail from the north pier.",
        (6, 7, 9, 10),
        (14, 15, 17, 20),
        "From which pier does the {name} ferry sail?",
        "north",
        "south",
    ),
)


@dataclass(frozen=True, slots=True)
class Changed:
    """A fact as it was in the donor and as it is now, with the rule that both documents hold."""

    before: str
    now: str
    rule: str
    question: str
    answer: str
    outdated: str
    """What the donor's fact would have answered."""


def changed_fact(number: int) -> Changed:
    """Every second one is asked for through its consequence."""
    kind, name = KINDS[number // 2 % len(KINDS)], NAMES[number // 2 % len(NAMES)]
    rises = number // 4 % 2 == 0
    low, high = kind.low[number // 3 % len(kind.low)], kind.high[number // 5 % len(kind.high)]
    old, new = (low, high) if rises else (high, low)
    before, now = (kind.fact.format(name=name, figure=figure) for figure in (old, new))
    if number % 2 == 0:
        return Changed(before, now, kind.rule, kind.question.format(name=name), str(new), str(old))
    outcomes = (kind.if_low, kind.if_high) if rises else (kind.if_high, kind.if_low)
    return Changed(before, now, kind.rule, kind.decides.format(name=name), outcomes[1], outcomes[0])
