"""A lookup takes time too. Where plans have spared less lately, few prompts of that length or kind are looked up."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from semblend_core.contract import Glimpse

FEWEST_IN_VAIN = 4
"""Lookups in a row, for prompts that are alike, that took longer than their plans spared. So many come before the first
trial of a plan too."""
FEWEST_AGAIN = 2
"""The same for prompts of a kind that was given up before."""
LOOK_ONE_IN = 8
NEWEST_COUNTS = 0.4
"""Of what a lookup for such a prompt is worth: the share of the last one."""
NEWEST_DECLINED_COUNTS = 0.1
NEWEST_MISS_COUNTS = 0.05
"""The same for one whose plan did not seem to pay, and for one that found nothing: where one in ten leads to something,
that may be worth all of them."""
KIND_FOR_LENGTH = 0.25
"""What a lookup for one kind of prompt says of all prompts of its length."""


@dataclass(frozen=True, slots=True)
class Lookup:
    tokens: int
    """What would be computed without reuse."""
    kind: tuple[int, ...] | None = None
    """Of its glimpse; None: there was none."""
    stands_for: int = 1
    """Prompts: its own, and those like it before that were not looked up. 0: it is not made; its glimpse said all."""


@dataclass(slots=True)
class _Alike:
    """Prompts of about one length, or those of one kind among them."""

    worth: float | None = None
    """What a lookup gains or costs on average, in microseconds; None: there was none."""
    in_vain: float = 0
    """Lookups in a row that took longer than they spared."""
    fewest_in_vain: int = FEWEST_IN_VAIN
    skipped: int = 0
    """Prompts since the last lookup."""

    @property
    def loses(self) -> bool:
        return self.worth is not None and self.worth < 0 and self.in_vain >= self.fewest_in_vain

    def stand_for(self) -> int:
        """Prompts that a lookup stands for if it is made now; 0: it is not time for one."""
        if self.loses and self.skipped + 1 < LOOK_ONE_IN:
            self.skipped += 1
            return 0
        stand_for, self.skipped = self.skipped + 1, 0
        return stand_for

    def note(self, gained: float, counts: float, says: float = 1.0) -> None:
        """``says``: how much of one lookup it is."""
        before = gained if self.worth is None else self.worth
        self.worth = before + says * counts * (gained - before)
        self.in_vain = 0 if gained > 0 else self.in_vain + says


class Lookups:
    """Where those of a length lose, prompts are not even glimpsed at; otherwise kinds of prompts are told apart."""

    def __init__(self) -> None:
        self._lengths: defaultdict[int, _Alike] = defaultdict(_Alike)
        self._kinds: defaultdict[tuple[int, ...], _Alike] = defaultdict(_Alike)

    def ask(self, tokens: int, glimpse: Callable[[], Glimpse | None] = lambda: None) -> Lookup | None:
        """Of a prompt of which ``tokens`` would be computed without reuse; None: it is not even worth a glimpse."""
        length = self._lengths[_length(tokens)]
        of_length_lose, stand_for = length.loses, length.stand_for()
        if not stand_for:
            return None
        seen = glimpse()
        kind = None if seen is None else seen.kind
        if kind is not None and not of_length_lose:
            stand_for = self._kinds[_length(tokens), *kind].stand_for()
        return Lookup(tokens, kind, stand_for)

    def note(self, lookup: Lookup, gained: float) -> None:
        """What its plan spares, as far as can be told, less what it took to find it."""
        self._note(lookup, gained, NEWEST_COUNTS)

    def declined(self, lookup: Lookup, spent: float) -> None:
        """Its plan did not seem to pay."""
        self._note(lookup, -spent, NEWEST_DECLINED_COUNTS)

    def found_nothing(self, lookup: Lookup, spent: float) -> None:
        if lookup.stands_for:
            self._note(lookup, -spent, NEWEST_MISS_COUNTS)
        else:  # What its glimpse took says nothing of a lookup for such a prompt.
            self._lengths[_length(lookup.tokens)].note(-spent, NEWEST_COUNTS, KIND_FOR_LENGTH)

    def _note(self, lookup: Lookup, gained: float, counts: float) -> None:
        length = _length(lookup.tokens)
        if lookup.kind is None:
            self._lengths[length].note(gained, counts)
        else:
            self._lengths[length].note(gained, counts, KIND_FOR_LENGTH)
            kind = self._kinds[length, *lookup.kind]
            kind.note(gained, counts)
            if kind.loses:
                kind.fewest_in_vain = FEWEST_AGAIN


def _length(tokens: int) -> int:
    """Lengths that differ by less than a fifth are about one."""
    return int(4 * math.log2(max(1, tokens)))
