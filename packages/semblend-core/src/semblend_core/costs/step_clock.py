"""How long each of the engine's steps takes, and which requests were in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from semblend_core.costs.steps import Part, StepShape

MOST_UNDER_WAY = 16
"""Steps. Engines have two at a time; one whose results never come is forgotten."""
DECODES_TO_BEGIN_WITH = 8
ONE_DECODE_IN = 32
"""Steps without any part of a prompt are looked at this rarely: they are many, alike, and nobody plans by them."""


@dataclass(slots=True)
class Step:
    made_for: Any
    """The engine's own object."""
    began: float
    number: int = 0
    """Of the time that the engine began to schedule."""
    parts: list[Part] | None = None
    """None: not looked at."""
    shape: StepShape | None = None
    loaded: Mapping[str, int] = field(default_factory=dict)
    """Tokens whose relocated KV is loaded in it, by request."""
    overlapped: bool = False
    """It was scheduled while another was under way, and is timed from when the results of that one were asked for: its
    own may have been there by then. The time of any other step may be too long, never too short."""


class StepClock:
    """A step takes from when it is scheduled, or from when the one before it ended, until it ends itself.

    So it is right for an engine that waits for every step, and for one that schedules while another step runs. A step
    has ended when its results are here: what is done with them is part of it. But where the next one was scheduled
    before they were asked for, that would be charged to it too. There it ended when it is told to have. Called on the
    scheduler's thread only.
    """

    def __init__(self, took: Callable[[Step, float], None], now: Callable[[], float] = time.perf_counter) -> None:
        """``took``: called with each step that was looked at and its microseconds."""
        self._took, self._now = took, now
        self._began = self._last_ended = 0.0
        self._times_begun = 0
        self._knows_last_end = True
        """Whether that is when it ended, and not when its results were asked for."""
        self._under_way: dict[int, Step] = {}
        self._decodes = 0

    def begin(self) -> None:
        """The engine begins to schedule a step."""
        self._began = self._now()
        self._times_begun += 1

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What runs inside is spent in any case, and counts for no step: a lookup."""
        began = self._now()
        try:
            yield
        finally:
            self._began += self._now() - began

    def wants(self, tokens: int, sequences: int) -> bool:
        """Whether to look at a step of this size."""
        if tokens > sequences:
            return True
        if not tokens:
            return False
        self._decodes += 1
        return self._decodes <= DECODES_TO_BEGIN_WITH or self._decodes % ONE_DECODE_IN == 0

    def scheduled(self, made_for: Any, parts: list[Part] | None, moved: Mapping[str, int], corrected: int) -> None:
        """The step is made. ``parts``: what its sequences compute; None where it is not looked at.

        Steps that compute nothing are not told of.
        """
        shape = None if parts is None else StepShape.of(parts, moved=sum(moved.values()), corrected=corrected)
        self._under_way[id(made_for)] = Step(made_for, self._began, self._times_begun, parts, shape, moved)
        if len(self._under_way) > MOST_UNDER_WAY:
            del self._under_way[next(iter(self._under_way))]

    def finished(self, made_for: Any, ended: float | None = None) -> None:
        """The step's results are here. ``ended``: when its forward had ended, if that is known."""
        now, step = self._now(), self._under_way.pop(id(made_for), None)
        if step is None:
            return  # It computed nothing. Engines ask for its results late, while they begin another.
        if step.number == self._times_begun:  # The engine has waited for it.
            ended = now
        elif ended is None or not max(step.began, self._last_ended) <= ended <= now:
            ended = None
        knows_both = ended is not None and self._knows_last_end
        step.overlapped = step.began < self._last_ended and not knows_both
        began = max(step.began, self._last_ended)
        self._last_ended, self._knows_last_end = now if ended is None else ended, ended is not None
        if step.shape is not None and self._last_ended >= began:  # A clock may be set back.
            self._took(step, (self._last_ended - began) * 1e6)
