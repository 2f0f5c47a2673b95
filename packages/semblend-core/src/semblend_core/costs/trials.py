"""What does not seem to pay is tried now and then, or it would never be known."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from semblend_core.costs.steps import Kind

FIRST_TRIAL_AFTER = 4
"""Requests of a kind that may pay for all that is known."""
FIRST_LOSING_TRIAL_AFTER = 8
"""Requests of a kind that is predicted to lose. What it takes may have been measured in a bad moment."""
FIRST_DEAR_TRIAL_AFTER = 32
"""The same for a trial that takes far longer than what is done instead: so many times how much longer."""
RAREST_TRIAL = 1024
AFTER_ONE_THAT_WENT_WELL, MOST_AT_ONCE = 2, 16
"""Requests of its kind that are trials too. With one alone, of prompts that come together only one would ever be served
so: the others are decided on before anything is known of the first."""
MOST_KINDS = 256


@dataclass(slots=True)
class _Kind:
    declined: int = 0
    """Since the last trial."""
    wait: int = 1
    """By how much trials are rarer than at first. Doubled with each that did not go well."""


class Trials:
    """By kind of the first step. After one that went well the next requests of its kind are trials too."""

    def __init__(self, most_at_once: int = MOST_AT_ONCE) -> None:
        self._most_at_once = most_at_once
        self._kinds: OrderedDict[Kind, _Kind] = OrderedDict()
        self._at_once: OrderedDict[Kind, int] = OrderedDict()
        """Trials that do not wait."""

    def is_due(self, kind: Kind, after: float, requests: int = 1) -> bool:
        """A request of this kind would not be served in this way: whether to try it. ``after``: so many at first.

        ``requests``: that it stands for, itself and those like it that were not looked up.
        """
        if self._at_once.get(kind):
            self._at_once[kind] -= 1
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
        self._at_once[kind] = min(self._at_once.pop(kind, 0) + AFTER_ONE_THAT_WENT_WELL, self._most_at_once)
        if len(self._at_once) > MOST_KINDS:
            self._at_once.popitem(last=False)
        self._kinds.pop(kind, None)

    def went_badly(self, kind: Kind) -> None:
        """So may those that were to be made at once."""
        self._at_once.pop(kind, None)
