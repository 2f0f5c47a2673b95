"""What does not seem to pay is tried now and then, or it would never be known; and looked up no more often."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from dataclasses import dataclass

from semblend_core.costs.steps import Kind

FIRST_TRIAL_AFTER = 4
"""Requests of a kind that may pay for all that is known."""
FIRST_LOSING_TRIAL_AFTER = 8
"""Requests of a kind that is predicted to lose. What it takes may have been measured in a bad moment."""
FIRST_DEAR_TRIAL_AFTER = 32
"""The same for a trial that takes far longer than what is done instead: so many times how much longer."""
RAREST_TRIAL = 1024
MOST_KINDS = 256


@dataclass(slots=True)
class _Kind:
    declined: int = 0
    """Since the last trial."""
    wait: int = 1
    """By how much trials are rarer than at first. Doubled with each that did not go well."""


class Trials:
    """By kind of the first step. After one that went well the next request of its kind is one too."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Kind, _Kind] = OrderedDict()
        self._well: set[Kind] = set()

    def is_due(self, kind: Kind, after: float, requests: int = 1) -> bool:
        """A request of this kind would not be served in this way: whether to try it. ``after``: so many at first.

        ``requests``: that it stands for, itself and those like it that were not looked up.
        """
        if kind in self._well:
            self._well.discard(kind)
            return True
        known = self._kinds.setdefault(kind, _Kind())
        self._kinds.move_to_end(kind)
        if len(self._kinds) > MOST_KINDS:
            self._kinds.popitem(last=False)
        known.declined += requests
        rarest = max(RAREST_TRIAL, RAREST_TRIAL / FIRST_DEAR_TRIAL_AFTER * after)
        if known.declined < min(after * known.wait, rarest):
            return False
        known.declined, known.wait = 0, 2 * known.wait
        return True

    def was_not_made(self, kind: Kind) -> None:
        """It taught nothing, so the next is no rarer for it."""
        if kind in self._kinds:
            self._kinds[kind].wait = max(1, self._kinds[kind].wait // 2)

    def not_needed(self, kind: Kind) -> None:
        """What a trial would tell was seen anyway."""
        if kind in self._kinds:
            self._kinds[kind].declined = 0

    def went_well(self, kind: Kind) -> None:
        self._well.add(kind)
        self._kinds.pop(kind, None)


FEWEST_IN_VAIN = 4
"""Lookups in a row, for prompts of about one length, that took longer than their plans spared."""
LOOK_ONE_IN = 8
NEWEST_COUNTS = 0.4
"""Of what a lookup of that length is worth: the share of the last one."""
NEWEST_MISS_COUNTS = 0.05
"""The same for one that found nothing: where one in ten finds something, that may be worth all of them."""


@dataclass(slots=True)
class _Length:
    """Prompts of about one length."""

    worth: float | None = None
    """What a lookup gains or costs on average, in microseconds; None: there was none."""
    in_vain: int = 0
    """Lookups in a row that took longer than they spared."""
    skipped: int = 0
    """Prompts since the last lookup."""
    stand_for: int = 1
    """Prompts that the last lookup stands for: its own, and those before it that were not looked up."""


class Lookups:
    """A lookup takes time too. Where plans have spared less lately, few prompts of that length are looked up."""

    def __init__(self) -> None:
        self._lengths: defaultdict[int, _Length] = defaultdict(_Length)

    def are_worth_it(self, tokens: int) -> bool:
        """``tokens``: what would be computed without reuse."""
        known = self._lengths[_length(tokens)]
        loses = known.worth is not None and known.worth < 0
        if loses and known.in_vain >= FEWEST_IN_VAIN and known.skipped + 1 < LOOK_ONE_IN:
            known.skipped += 1
            return False
        known.skipped, known.stand_for = 0, known.skipped + 1
        return True

    def stand_for(self, tokens: int) -> int:
        """The requests that the last lookup for such a prompt stands for: itself, and those without one before it."""
        return self._lengths[_length(tokens)].stand_for

    def note(self, tokens: int, gained: float) -> None:
        """What a plan for a prompt of this length spares, as far as can be told, less what it took to find it."""
        self._note(tokens, gained, NEWEST_COUNTS)

    def found_nothing(self, tokens: int, spent: float) -> None:
        self._note(tokens, -spent, NEWEST_MISS_COUNTS)

    def _note(self, tokens: int, gained: float, counts: float) -> None:
        known = self._lengths[_length(tokens)]
        before = gained if known.worth is None else known.worth
        known.worth = before + counts * (gained - before)
        known.in_vain = 0 if gained > 0 else known.in_vain + 1


def _length(tokens: int) -> int:
    """Lengths that differ by less than a fifth are about one."""
    return int(4 * math.log2(max(1, tokens)))
