"""Holds the agreement of served answers with cold ones at a target, apart for each kind of plan.

A kind that falls short spends more: a multiple of its tier's budget, one step at a time. One that falls short at the
last step is declined. Where there is clear surplus it spends less again, down to the tier's own budget, and what was
declined is tried again. With each failure both come later, so nothing goes to and fro.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from semblend_core.quality.evidence import Evidence

STEPS = (1.0, 2.0, 4.0)
"""Of the budget, by the tier's own. What the tier promises is the least."""
ALARM = 300.0
"""Evidence for a lack. At the very target, chance alone raises it once in more comparisons than this."""
PROOF = 20.0
"""Evidence for surplus, before less is spent or a kind is no longer declined. A mistake is noticed soon."""
MARGIN = 0.25
"""Of what the target leaves to 1: an agreement better by so much is surplus."""
FIRST_LESS_AFTER = 100
"""Comparisons at a step before the one below it is tried again."""
FIRST_TRIAL_AFTER = 1024
"""Requests that are declined before some are served again."""
MOST_DOUBLINGS = 8
MOST_TRIALS = 64
"""Requests that are served to find out whether a kind may still be declined."""


@dataclass
class _Kind:
    step: int = 0
    lack: Evidence = field(default_factory=lambda: Evidence(0.0))
    surplus: Evidence = field(default_factory=lambda: Evidence(0.0))
    failures: list[int] = field(default_factory=lambda: [0] * len(STEPS))
    """How often each step fell short."""
    declining: bool = False
    declined: int = 0
    """Requests, since it was decided or last tried."""
    trials_left: int = 0
    tried: bool = False
    """Some were served since it was decided, or since trials last fell short."""


class QualityController:
    """``target``: the least mean agreement, in [0, 1]; 0: nothing is held, every kind spends its tier's budget."""

    def __init__(self, target: float) -> None:
        if not 0 <= target <= 1:
            raise ValueError(f"target is an agreement, in [0, 1], got {target}")
        self._target = target
        self._kinds: dict[str, _Kind] = {}

    # --- Requests ----------------------------------------------------------------------------------------------------

    def ask(self, kind: str) -> float | None:
        """A request of this kind could reuse: by how much of its tier's budget; None: it is declined."""
        state = self._kinds.get(kind)
        if state is None:
            return STEPS[0]
        if not state.declining:
            return STEPS[state.step]
        if state.trials_left == 0:
            state.declined += 1
            if state.declined < _later(FIRST_TRIAL_AFTER, state.failures[-1]):
                return None
            # Evidence is kept from one trial to the next: a high target takes more of it than one can bring, and so
            # does an engine that has room to compare only some of them.
            if state.surplus.strength <= state.lack.strength:
                state.failures[-1] += 1  # Nothing speaks for it so far, and the next one comes later.
            state.declined, state.trials_left, state.tried = 0, MOST_TRIALS, True
        state.trials_left -= 1
        return STEPS[-1]

    def spending(self, kind: str) -> float:
        """By how much of its budget a kind is served, if at all."""
        state = self._kinds.get(kind)
        return STEPS[0] if state is None else STEPS[state.step]

    def is_declined(self, kind: str) -> bool:
        state = self._kinds.get(kind)
        return state is not None and state.declining

    def is_tried(self, kind: str) -> bool:
        """Whether it is declined but for trials, each of which is worth comparing."""
        state = self._kinds.get(kind)
        return state is not None and state.declining and state.tried

    def trusts(self, kind: str, spending: float) -> bool:
        """Whether what was computed with so much of the budget may still be served to others."""
        return not self.is_declined(kind) and spending >= self.spending(kind)

    # --- Comparisons -------------------------------------------------------------------------------------------------

    def compared(self, kind: str, spending: float, agreement: float) -> bool:
        """An answer was compared that was served with so much of the budget. Whether anything changes by it."""
        if not self._target:
            return False
        if kind not in self._kinds:
            self._kinds[kind] = _Kind()
            self._gather_anew(self._kinds[kind])
        state = self._kinds[kind]
        if spending != STEPS[state.step]:
            return False  # What it says of another step is no longer, or not yet, of use.
        state.lack.add(agreement)
        state.surplus.add(1 - agreement)
        if state.lack.strength >= ALARM:
            self._fell_short(state)
        elif state.declining and state.surplus.strength >= PROOF:
            state.declining, state.trials_left = False, 0
            self._gather_anew(state)
        elif self._can_spend_less(state):
            state.step -= 1
            self._gather_anew(state)
        else:
            return False
        return True

    def start_over(self) -> None:
        """The model is another."""
        self._kinds.clear()

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _fell_short(self, state: _Kind) -> None:
        state.trials_left, state.tried = 0, False
        if not state.declining:
            state.failures[state.step] += 1
            state.declining = state.step == len(STEPS) - 1
            state.step = min(state.step + 1, len(STEPS) - 1)
            state.declined = 0
        self._gather_anew(state)

    def _can_spend_less(self, state: _Kind) -> bool:
        if state.step == 0 or state.declining:
            return False
        enough = state.lack.observations >= _later(FIRST_LESS_AFTER, state.failures[state.step - 1])
        return enough and state.surplus.strength >= PROOF

    def _gather_anew(self, state: _Kind) -> None:
        state.lack = Evidence(self._target)
        margin = 0.0 if state.declining else MARGIN * (1 - self._target)
        state.surplus = Evidence(1 - (self._target + margin))


def _later(first: int, failures: int) -> int:
    return first << min(max(0, failures - 1), MOST_DOUBLINGS)
