"""A lookup takes time too. Where plans have spared less lately, few prompts of that length or kind are looked up."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from semblend_core.contract import Glimpse

FEWEST_IN_VAIN = 4
"""Lookups in a row, for prompts that are alike, that took longer than their plans spared. So many come before the first
trial of a plan too."""
FEWEST_AGAIN = 2
"""The same for prompts of a kind that was given up before."""
LOOK_ONE_IN = 8
"""On average. Were it every eighth, then of prompts that come in a fixed order always the same."""
NEWEST_COUNTS = 0.4
"""Of what a lookup for such a prompt is worth: the share of the last one."""
NEWEST_DECLINED_COUNTS = 0.1
NEWEST_MISS_COUNTS = 0.05
"""The same for one whose plan did not seem to pay, and for one that found nothing: where one in ten leads to something,
that may be worth all of them."""
KIND_FOR_LENGTH = 0.25
"""What a prompt of one kind says of all prompts of its length, where it is about lookups in vain."""
FAR_LESS = 0.5
"""Of what such a prompt was predicted to take: the machine is another, or what was believed came of compilations."""
ONE_PROMPT_COUNTS = 1 / 16
"""What prompts of a length gain on average where kinds are told apart: the share of the last one, whether it was looked
up or its glimpse said all. Those that gain pay for the glimpses at the others."""

DEAR_GLIMPSE = 0.01
"""Of what a prompt takes without reuse. Those that gain nothing from a glimpse that takes longer would feel it."""
LEAST_FOR_DEAR_GLIMPSES = 0.03
"""Of the same: what prompts of a length must gain on average to be worth such glimpses."""


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
    cold: float = 0.0
    """What such a prompt was predicted to take without reuse when it was last noted, if that was told."""
    in_vain: float = 0
    """Lookups in a row that took longer than they spared."""
    fewest_in_vain: int = FEWEST_IN_VAIN
    skipped: int = 0
    """Prompts since the last lookup."""
    next_after: int = LOOK_ONE_IN
    """Prompts after which the next is made, where they are rare."""
    glimpses: deque[float] = field(default_factory=lambda: deque(maxlen=3))
    """What the last few took."""

    @property
    def loses(self) -> bool:
        return self.worth is not None and self.worth < self.least_worth and self.in_vain >= self.fewest_in_vain

    @property
    def least_worth(self) -> float:
        """What they must gain on average for others among them to be glimpsed at."""
        return LEAST_FOR_DEAR_GLIMPSES * self.cold if self.glimpse > DEAR_GLIMPSE * self.cold else 0.0

    @property
    def glimpse(self) -> float:
        """What one takes: a single slow one was an accident."""
        return statistics.median_high(self.glimpses) if self.glimpses else 0.0

    def stand_for(self, draw: Callable[[], float]) -> int:
        """Prompts that a lookup stands for if it is made now; 0: it is not time for one."""
        if self.loses and self.skipped + 1 < self.next_after:
            self.skipped += 1
            return 0
        stand_for, self.skipped = self.skipped + 1, 0
        self.next_after = 1 + int((2 * LOOK_ONE_IN - 1) * draw())
        return stand_for

    def believe(self, cold: float) -> None:
        """Where much more was to be spared than such prompts take at all, what lookups gained says nothing any more."""
        if cold <= 0:
            return
        if self.worth is not None and self.worth > 0 and cold < FAR_LESS * self.cold:
            self.worth = None
        self.cold = cold

    def note(self, gained: float, counts: float) -> None:
        self._average(gained, counts)
        self.in_vain = 0 if gained > 0 else self.in_vain + 1

    def note_one_of_many(self, gained: float) -> None:
        """A prompt of one of several kinds: only their average tells whether looking is in vain."""
        if self._average(gained, ONE_PROMPT_COUNTS) > self.least_worth:
            self.in_vain = 0
        elif gained <= 0:  # One that gains is not in vain, however much others have lost.
            self.in_vain += KIND_FOR_LENGTH
        else:  # Where most gain a little, nobody pays for them.
            self.in_vain = max(0, self.in_vain - KIND_FOR_LENGTH)

    def _average(self, gained: float, counts: float) -> float:
        before = gained if self.worth is None else self.worth
        self.worth = before + counts * (gained - before)
        return self.worth


class Lookups:
    """Where those of a length lose, prompts are not even glimpsed at; otherwise kinds of prompts are told apart."""

    def __init__(self, now: Callable[[], float] = time.perf_counter, draw: Callable[[], float] | None = None) -> None:
        """``draw``: a number from 0 to 1."""
        self._now, self._draw = now, random.Random(0).random if draw is None else draw
        self._lengths: defaultdict[int, _Alike] = defaultdict(_Alike)
        self._kinds: defaultdict[tuple[int, ...], _Alike] = defaultdict(_Alike)

    def ask(self, tokens: int, glimpse: Callable[[], Glimpse | None] = lambda: None) -> Lookup | None:
        """Of a prompt of which ``tokens`` would be computed without reuse; None: it is not even worth a glimpse."""
        length = self._lengths[_length(tokens)]
        of_length_lose, stand_for = length.loses, length.stand_for(self._draw)
        if not stand_for:
            return None
        began = self._now()
        seen = glimpse()
        if seen is not None:
            length.glimpses.append(1e6 * (self._now() - began))
        kind = None if seen is None else seen.kind
        if kind is not None and not of_length_lose:
            stand_for = self._kinds[_length(tokens), *kind].stand_for(self._draw)
        return Lookup(tokens, kind, stand_for)

    def note(self, lookup: Lookup, gained: float, cold: float = 0.0) -> None:
        """What its plan spares, as far as can be told, less what it took to find it.

        ``cold``: what its prompt is predicted to take without reuse; 0: not told.
        """
        self._note(lookup, gained, NEWEST_COUNTS, cold)

    def declined(self, lookup: Lookup, spent: float, cold: float = 0.0) -> None:
        """Its plan did not seem to pay."""
        self._note(lookup, -spent, NEWEST_DECLINED_COUNTS, cold)

    def found_nothing(self, lookup: Lookup, spent: float, cold: float = 0.0) -> None:
        if lookup.stands_for:
            self._note(lookup, -spent, NEWEST_MISS_COUNTS, cold)
        else:  # What its glimpse took says nothing of a lookup for such a prompt.
            length = self._lengths[_length(lookup.tokens)]
            length.note_one_of_many(-min(spent, length.glimpse))

    def _note(self, lookup: Lookup, gained: float, counts: float, cold: float) -> None:
        length = self._lengths[_length(lookup.tokens)]
        length.believe(cold)
        if lookup.kind is None:
            length.note(gained, counts)
            return
        kind = self._kinds[_length(lookup.tokens), *lookup.kind]
        kind.believe(cold)
        # If its kind was given up, a glimpse would have said all, were prompts of this length glimpsed at again.
        length.note_one_of_many(max(gained, -length.glimpse) if kind.loses else gained)
        kind.note(gained, counts)
        if kind.loses:
            kind.fewest_in_vain = FEWEST_AGAIN


def _length(tokens: int) -> int:
    """Lengths that differ by less than a fifth are about one."""
    return int(4 * math.log2(max(1, tokens)))
