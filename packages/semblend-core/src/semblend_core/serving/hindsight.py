"""What was predicted of a request, and what came of it: whether its plan, its trial and its lookup were worth it."""

from __future__ import annotations

from semblend_core.costs import Judgement, Lookup, Lookups, StepShape, StepTimes, Trials
from semblend_core.costs.lookups import FAR_LESS
from semblend_core.costs.surprises import Surprises
from semblend_core.serving.forecast import cold_steps
from semblend_core.serving.weighing import LEAST_GAIN, SMALL_LOSS

SMALL_SHARE = 0.01
"""Of the cold prefill's time. A lookup that takes no more is never spared: the next may find something."""
MOST_LEFT = 8
"""Requests that are not looked at yet: to predict takes as long as a lookup, and first tokens do not wait for it."""


class Hindsight:
    def __init__(
        self,
        times: StepTimes,
        surprises: Surprises,
        trials: Trials,
        cold_trials: Trials,
        lookups: Lookups,
        step_tokens: int,
    ) -> None:
        self._times, self._surprises, self._lookups, self._step_tokens = times, surprises, lookups, step_tokens
        self._trials, self._cold_trials = trials, cold_trials
        self._misses: list[tuple[Lookup, float]] = []
        """Lookups and glimpses that led to nothing, and what they took. They are held against their prefills later."""
        self._shared: list[Judgement] = []
        """Of prompts that were computed in steps with others."""

    def missed(self, lookup: Lookup, spent: float) -> None:
        """A lookup, or its glimpse, has found no plan that anything can be made of."""
        self._misses.append((lookup, spent))

    def declined(self, judgement: Judgement) -> None:
        """Its plan did not seem to pay."""
        if judgement.looking > SMALL_SHARE * judgement.cold:
            spent = _as_counted(judgement.looking, judgement.cold)
            self._lookups.declined(judgement.lookup, spent, judgement.cold)

    def measured(self, judgement: Judgement) -> None:
        """Its prompt is computed."""
        if judgement.shared:
            self._shared.append(judgement)
        else:
            self._compare(judgement, judgement.measured)

    def step_ended(self, shape: StepShape) -> None:
        """Nobody waits for a first token now, or too many are left."""
        if shape.sequences and len(self._misses) + len(self._shared) < MOST_LEFT:
            return
        misses, self._misses = self._misses, []
        for lookup, spent in misses:
            cold = self._times.predict(cold_steps(0, lookup.tokens, self._step_tokens))
            if spent > SMALL_SHARE * cold:
                self._lookups.found_nothing(lookup, _as_counted(spent, cold), cold)
        self.compare_shared()

    def compare_shared(self) -> None:
        """What was left of prompts in steps with others."""
        shared, self._shared = self._shared, []
        for judgement in shared:
            of_others = 0.0
            for step in judgement.shared:
                own = step.own
                share = self._times.predict([own]) / self._times.predict([step.whole])
                of_others += step.microseconds * max(0.0, 1 - share)
                if own.reuses:
                    self._times.observe_part(own)
            self._compare(judgement, judgement.measured - of_others)

    def _compare(self, judgement: Judgement, took: float) -> None:
        """``took``: without others. Of steps with another prompt that is told roughly: nobody knows whose surprised."""
        if judgement.reused and not judgement.beside_prompts:
            self._surprises.note(judgement.forecast, took - judgement.waited)
        if judgement.trial_of is None:
            if judgement.reason is None:
                took = judgement.reuse if judgement.beside_prompts else took
                # What was not loaded after all has spared nothing.
                self._note_worth(judgement, judgement.cold - took if judgement.reused else 0.0)
            return
        # A trial that took less than what is done instead: the next ones tell whether that was luck.
        if took >= (1 - LEAST_GAIN) * judgement.cold:
            (self._cold_trials if judgement.is_cold_trial else self._trials).went_badly(judgement.trial_of)
            return
        if judgement.reused:
            self._trials.went_well(judgement.trial_of)
            self._note_worth(judgement, judgement.cold - took)
        elif judgement.is_cold_trial and took < (1 - SMALL_LOSS) * judgement.cold:
            self._cold_trials.went_well(judgement.trial_of)
            if took < FAR_LESS * judgement.cold:
                # What is known of reuse may be as outdated, and nothing else would tell once it seems to lose.
                self._trials.went_well(judgement.forecast[0].kind)

    def _note_worth(self, judgement: Judgement, spared: float) -> None:
        """What a lookup is worth: what it spared, less itself, and less what no answer is worth approximating for."""
        worth = spared - _as_counted(judgement.looking, judgement.cold) - LEAST_GAIN * judgement.cold
        if worth > 0 or judgement.looking > SMALL_SHARE * judgement.cold:
            self._lookups.note(judgement.lookup, worth, judgement.cold)


def _as_counted(spent: float, cold: float) -> float:
    """What a lookup took, at most its prefill: the process may have stood still meanwhile, for seconds."""
    return min(spent, cold)
