"""Plans that take longer than their steps were forecast to, whatever the reason.

What is learned of steps goes by what a step computed. A forecast may be of steps that do not come about as forecast,
such as those behind a probe, whose rows nobody knows before. Then nothing that is learned of steps mends it.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from semblend_core.costs.step_times import StepTimes
from semblend_core.costs.steps import Kind, StepShape

SURPRISING = 1.1
"""By what the same steps are predicted to take with all that is known by then."""
MEMORY = 3
"""Plans of one kind."""
MOST_KINDS = 256
MOST_NEW = 16
BELIEVED_FOR, BELIEVED_LONGEST = 32, 1024
"""Judgements, at first and after many surprises. Then it is doubted, or a bad moment would be believed for ever: where
something else is done instead, or steps are never one request's alone, nothing else tells that it is over."""


@dataclass(slots=True)
class _Slower:
    """Plans of one kind, the last of which was surprising."""

    plans: deque[tuple[Sequence[StepShape], float]] = field(default_factory=lambda: deque(maxlen=MEMORY))
    believed_for: int = BELIEVED_FOR
    doubted_at: int = 0
    """The judgement from which on it is not believed."""

    def note(self, forecast: Sequence[StepShape], measured: float, judgements: int) -> None:
        self.plans.append((forecast, measured))
        if len(self.plans) < 2:
            return  # One alone may have been an accident.
        if 0 < self.doubted_at <= judgements:
            self.believed_for = min(2 * self.believed_for, BELIEVED_LONGEST)
        self.doubted_at = judgements + self.believed_for


class Surprises:
    def __init__(self, times: StepTimes) -> None:
        self._times = times
        self._new: deque[tuple[Sequence[StepShape], float]] = deque(maxlen=MOST_NEW)
        """Forecasts and what came of them, not looked at: to predict takes a while, and first tokens wait for it."""
        self._slower: OrderedDict[tuple[Kind, ...], _Slower] = OrderedDict()
        """By the kinds of the steps that were forecast."""
        self._judgements = 0

    def note(self, forecast: Sequence[StepShape], measured: float) -> None:
        """A plan with this forecast took so many microseconds, by itself."""
        self._new.append((forecast, measured))

    def begin_judgement(self) -> None:
        """What was noted counts from now on."""
        self._judgements += 1
        while self._new:
            forecast, measured = self._new.popleft()
            kinds = _kinds(forecast)
            if measured <= SURPRISING * self._times.predict(forecast):
                self._slower.pop(kinds, None)
                continue
            self._slower.setdefault(kinds, _Slower()).note(forecast, measured, self._judgements)
            self._slower.move_to_end(kinds)
            if len(self._slower) > MOST_KINDS:
                self._slower.popitem(last=False)

    def factor(self, forecast: Sequence[StepShape]) -> float:
        """What such plans take by what their steps are predicted to. Never less than 1: trials tell of good luck."""
        slower = self._slower.get(_kinds(forecast)) if self._slower else None
        if slower is None or self._judgements >= slower.doubted_at:
            return 1.0
        ratios = (measured / self._times.predict(steps) for steps, measured in slower.plans)
        return max(1.0, statistics.median_low(ratios))


def _kinds(forecast: Sequence[StepShape]) -> tuple[Kind, ...]:
    return tuple(step.kind for step in forecast)
