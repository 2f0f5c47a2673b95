"""Plans that take longer than their steps were forecast to, whatever the reason.

What is learned of steps goes by what a step computed. A forecast may be of steps that do not come about as forecast,
such as those behind a probe, whose rows nobody knows before. Then nothing that is learned of steps mends it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

from semblend_core.costs.step_times import StepTimes
from semblend_core.costs.steps import Kind, StepShape

SURPRISING = 1.1
"""By what the same steps are predicted to take with all that is known by then."""
MEMORY = 3
"""Plans of one kind."""
MOST_KINDS = 256
MOST_NEW = 16


class Surprises:
    def __init__(self, times: StepTimes) -> None:
        self._times = times
        self._new: deque[tuple[Sequence[StepShape], float]] = deque(maxlen=MOST_NEW)
        """Forecasts and what came of them, not looked at: to predict takes a while, and first tokens wait for it."""
        self._slower: OrderedDict[tuple[Kind, ...], deque[tuple[Sequence[StepShape], float]]] = OrderedDict()
        """By the kinds of the steps that were forecast: the last plans, where the last one was surprising."""

    def note(self, forecast: Sequence[StepShape], measured: float) -> None:
        """A plan with this forecast took so many microseconds, by itself."""
        self._new.append((forecast, measured))

    def factor(self, forecast: Sequence[StepShape]) -> float:
        """What such plans take by what their steps are predicted to. Never less than 1: trials tell of good luck.

        One alone may have been an accident.
        """
        self._learn()
        last = self._slower.get(_kinds(forecast), ()) if self._slower else ()
        if len(last) < 2:
            return 1.0
        ratios = sorted(measured / self._times.predict(steps) for steps, measured in last)
        return max(1.0, ratios[(len(ratios) - 1) // 2])

    def _learn(self) -> None:
        while self._new:
            forecast, measured = self._new.popleft()
            kinds = _kinds(forecast)
            if measured <= SURPRISING * self._times.predict(forecast):
                self._slower.pop(kinds, None)
                continue
            self._slower.setdefault(kinds, deque(maxlen=MEMORY)).append((forecast, measured))
            self._slower.move_to_end(kinds)
            if len(self._slower) > MOST_KINDS:
                self._slower.popitem(last=False)


def _kinds(forecast: Sequence[StepShape]) -> tuple[Kind, ...]:
    return tuple(step.kind for step in forecast)
