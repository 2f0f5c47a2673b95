"""What is done about a request whose lookup found a plan: what is faster, or now and then what does not seem to be."""

from __future__ import annotations

from dataclasses import dataclass

from semblend_core.contract import DeclineReason, Plan
from semblend_core.costs import StepShape, Trials
from semblend_core.costs.steps import Kind
from semblend_core.costs.trials import FIRST_DEAR_TRIAL_AFTER, FIRST_TRIAL_AFTER
from semblend_core.serving.claims import Claim
from semblend_core.serving.weighing import ClaimMaker, Forecast, Weighed, Weigher


@dataclass(frozen=True, slots=True)
class Choice:
    claim: Claim | None
    """None: the request is computed."""
    weighed: Weighed
    trial_of: Kind | None
    """It is done in order to learn what such steps take; None: it seems to be the faster way."""


class Chooser:
    def __init__(self, weigher: Weigher, trials: Trials, cold_trials: Trials) -> None:
        self._weigher, self._trials, self._cold_trials = weigher, trials, cold_trials
        self.timed_prefills = False
        """Otherwise what a prefill takes is known from an earlier process only."""

    def choose(self, plan: Plan, cold: list[StepShape], claim_for: ClaimMaker, asked: int) -> Choice | DeclineReason:
        """``cold``: the steps without reuse. ``asked``: requests that this one stands for; 0: it was asked before."""
        forecasts = self._weigher.forecasts(plan)
        if not forecasts:
            return DeclineReason.QUALITY_TIER
        choice = self._of_reuse(plan, cold, forecasts, claim_for, asked)
        if isinstance(choice, DeclineReason) or not choice.weighed.pays:
            return choice
        # Where all is reused, nobody sees any more what a prefill takes.
        after = choice.weighed.trial_after if self.timed_prefills else FIRST_TRIAL_AFTER
        if self._cold_trials.is_due(cold[0].kind, after):
            return Choice(None, choice.weighed, cold[0].kind)
        return choice

    def _of_reuse(
        self, plan: Plan, cold: list[StepShape], forecasts: list[Forecast], claim_for: ClaimMaker, asked: int
    ) -> Choice | DeclineReason:
        weighed, kind = self._weigher.weigh(cold, forecasts[0].steps), forecasts[0].steps[0].kind
        seems_to_pay = weighed.pays
        trial = not seems_to_pay and self._trials.is_due(kind, weighed.trial_after, asked)
        if not (seems_to_pay or trial):
            return Choice(None, weighed, None)
        # To make a claim takes longer than to weigh a plan, and hardly any is faster than its plan promises.
        best = self._weigher.best_claim(plan, cold, forecasts, claim_for)
        if isinstance(best, DeclineReason):
            return best
        weighed = best.weighed
        if trial and weighed.pays:  # So do the next ones of their kind, and what they promise less is no reason.
            trial = False
            self._trials.went_well(kind)
        elif seems_to_pay and not weighed.pays:
            kind, after = best.steps[0].kind, weighed.trial_after
            if weighed.surprise > 1.0:
                after = max(FIRST_DEAR_TRIAL_AFTER, after)
            trial = self._trials.is_due(kind, after, asked)
        return Choice(best.claim if weighed.pays or trial else None, weighed, kind if trial else None)
