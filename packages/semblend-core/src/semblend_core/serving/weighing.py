"""What reuse would take beside a cold prefill: of a plan, of parts of it, and of what an engine makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from semblend_core.contract import DeclineReason, Plan, Span
from semblend_core.costs import StepShape, StepTimes
from semblend_core.costs.fetch_times import FetchTimes
from semblend_core.costs.surprises import Surprises
from semblend_core.costs.trials import FIRST_DEAR_TRIAL_AFTER, FIRST_LOSING_TRIAL_AFTER, FIRST_TRIAL_AFTER
from semblend_core.recompute.tiers import choose_policy_for
from semblend_core.serving.claims import Claim
from semblend_core.serving.forecast import claim_steps, planned_steps
from semblend_core.settings import Settings

ClaimMaker: TypeAlias = Callable[[Plan, int], Claim | DeclineReason]
"""What the engine makes of a plan. Rows with at most so many tokens between them are to become one."""

LEAST_GAIN = 0.06
"""Of the cold prefill's time. Steps vary by as much, and for less no answer is worth approximating."""
SMALL_LOSS = 0.1
"""Of the cold prefill's time. The sum over features may be so far off without being in doubt of it."""
FAR_ABOVE = 1.5
"""By what the sum over features says. Machines have stretches in which all takes longer by less."""
MOST_CLAIMS = 2
"""That are made for one request."""
NEARLY_AS_GOOD = 1.1
MOST_JOINED_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Forecast:
    spans: tuple[Span, ...]
    steps: list[StepShape]
    expected: float
    """To take so long, in microseconds."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """In microseconds."""

    cold: float
    reuse: float
    doubt: float
    least_gain: float
    waiting: float
    """Of ``reuse``: until donors have come that are not in memory."""
    forecast: Sequence[StepShape]
    """The steps of ``reuse``."""
    surprise: float
    """By which such plans took longer of late than their steps are predicted to."""
    cold_by_sum: float
    """``cold`` without what was seen of steps of its kinds."""

    @property
    def pays(self) -> bool:
        return self.cold - self.reuse - self.doubt > self.least_gain

    @property
    def may_pay(self) -> bool:
        """For all that is known. Such are tried now and then, or it would never be known."""
        gain = self.cold - self.reuse
        return gain + 2 * self.doubt + SMALL_LOSS * self.cold > self.least_gain and -gain < self.cold

    @property
    def trial_after(self) -> float:
        """Requests until one is served in the other way. The longer that would take, the more they are."""
        if self.pays:
            return FIRST_TRIAL_AFTER if self._pays_by_kinds else FIRST_DEAR_TRIAL_AFTER * self.cold / self.reuse
        if self.may_pay:
            return FIRST_TRIAL_AFTER
        if self.reuse < 2 * self.cold:
            return FIRST_LOSING_TRIAL_AFTER
        return FIRST_DEAR_TRIAL_AFTER * self.reuse / self.cold

    @property
    def _pays_by_kinds(self) -> bool:
        """Whether only what was seen of its kinds makes the cold prefill slow, which may have been compilations.

        Reuse pays then for all such prompts, and nothing else would tell.
        """
        spared_by_sum = self.cold_by_sum - self.reuse
        return spared_by_sum < LEAST_GAIN * self.cold_by_sum and self.cold > FAR_ABOVE * self.cold_by_sum


@dataclass(frozen=True, slots=True)
class WeighedClaim:
    claim: Claim
    steps: list[StepShape]
    weighed: Weighed


class Weigher:
    """By what is known of an engine's steps, and of how long its donors take to come."""

    def __init__(
        self,
        settings: Settings,
        step_tokens: int,
        times: StepTimes,
        fetches: FetchTimes,
        spending: Callable[[Sequence[Span]], float],
        probes_apart: bool,
        step_rows: int | None,
    ) -> None:
        self._settings, self._step_tokens, self._times, self._fetches = settings, step_tokens, times, fetches
        self._spending, self._probes_apart, self._step_rows = spending, probes_apart, step_rows
        self.surprises = Surprises(times)

    def forecasts(self, plan: Plan) -> list[Forecast]:
        """Of the plan and of smaller ones, by about what their tier computes of them. The fastest first."""
        self.surprises.begin_judgement()
        tier, limit = self._settings.quality_tier, self._settings.recompute_limit
        found = []
        for spans in (plan.spans, *self._fewer_spans(plan)):
            spending = self._spending(spans)
            choice = choose_policy_for(tier, spans, probing=False, limit=limit, spending=spending)
            if choice is not None:
                most_seam = choice.policy.longest_seam
                steps = planned_steps(plan, spans, self._step_tokens, choice.budget, most_seam)
                expected = self._times.predict(steps, hoping=True) * self.surprises.factor(steps)
                found.append(Forecast(spans, steps, expected))
        return sorted(found, key=lambda forecast: forecast.expected)

    def weigh(self, cold_steps: list[StepShape], steps: list[StepShape]) -> Weighed:
        cold, waiting = self._times.predict(cold_steps), self._fetches.expected(sum(step.moved for step in steps))
        surprise = self.surprises.factor(steps)
        reuse = self._times.predict(steps) * surprise + waiting
        least_gain = max(self._settings.min_gain_us, LEAST_GAIN * cold)
        doubt = self._times.doubt(steps, cold_steps)
        by_sum = self._times.by_sum(cold_steps)
        return Weighed(cold, reuse, doubt, least_gain, waiting, steps, surprise, by_sum)

    def best_claim(
        self, plan: Plan, cold: list[StepShape], forecasts: list[Forecast], claim_for: ClaimMaker
    ) -> WeighedClaim | DeclineReason:
        """Of those forecasts that are nearly as good as the best: the fastest that pays; where none does, of all.

        Where claims like the first took longer than expected, the next may be faster, whatever is expected of it. Of
        what is about as fast, steps that nobody has seen come first: if only one plan's are ever seen, what its rows
        cost is not told from what its load does.
        """
        nearly = NEARLY_AS_GOOD * forecasts[0].expected
        others = sorted(forecasts[1:], key=lambda each: (each.expected > nearly, self._has_seen(each), each.expected))
        made: list[WeighedClaim] = []
        refusal = DeclineReason.DOES_NOT_PAY
        for forecast in (forecasts[0], *others):
            far_behind = forecast.expected > nearly
            if made and (len(made) == MOST_CLAIMS or (far_behind and made[0].weighed.surprise == 1.0)):
                break
            part = plan if forecast.spans is plan.spans else plan.only(forecast.spans)
            claim = claim_for(part, self._worth_joining(part))
            if isinstance(claim, DeclineReason):
                refusal = claim
            else:
                made.append(self._weigh_claim(plan, cold, claim))
        if not made:
            return refusal
        paying = [each for each in made if each.weighed.pays]

        def expected(each: WeighedClaim) -> float:
            if not paying:  # What is tried is what was forecast to be best: only that tells whether it is so again.
                return self._times.predict(each.steps)
            # Before a short prompt was seen, whatever computes few tokens is predicted to take as long as what computes
            # more. Of claims that pay even so, the one with fewer is made: nothing else would ever tell.
            return self._times.predict(each.steps, hoping=True) * each.weighed.surprise

        ranked = [(expected(each), each) for each in paying or made]
        nearly = NEARLY_AS_GOOD * min(took for took, _ in ranked)
        return min(ranked, key=lambda pair: (pair[0] > nearly, self._has_seen(pair[1]), pair[0]))[1]

    def _has_seen(self, plan: Forecast | WeighedClaim) -> bool:
        return self._times.has_seen(plan.steps[0].kind)

    def _fewer_spans(self, plan: Plan) -> Iterator[tuple[Span, ...]]:
        """The longest of them, half as many each time, while they are enough for a plan."""
        settings = self._settings
        least = settings.min_reuse_ratio * (plan.prompt_tokens - plan.exact_prefix_tokens)
        least = max(least, settings.min_saved_tokens)
        by_length = sorted(plan.spans, key=lambda span: -span.length)
        count = 1 << (len(by_length) - 1).bit_length() >> 1
        while count and sum(span.length for span in by_length[:count]) >= least:
            yield tuple(sorted(by_length[:count], key=lambda span: span.target_start))
            count //= 2

    def _worth_joining(self, plan: Plan) -> int:
        """Tokens that are computed faster than another sequence."""
        beyond = self._times.cost("token_beyond_flat") if plan.computed_tokens > self._step_tokens // 4 else 0.0
        token = self._times.cost("token") + beyond
        row = self._times.cost("sequence") + self._times.cost("context") * plan.prompt_tokens / 2
        return MOST_JOINED_TOKENS if token * MOST_JOINED_TOKENS <= row else int(row / token)

    def _weigh_claim(self, plan: Plan, cold: list[StepShape], claim: Claim) -> WeighedClaim:
        """A claim with a probe if it pays with the probe's step, else without."""
        steps = self._steps_of(claim, plan)
        weighed = self.weigh(cold, steps)
        if claim.probing is None or weighed.pays:
            return WeighedClaim(claim, steps, weighed)
        plain = claim.unprobed()
        plain_steps = self._steps_of(plain, plan)
        without_probe = self.weigh(cold, plain_steps)
        if without_probe.pays:
            # Steps of a probe's kind are seen only if one is made, and answers are worth more with it.
            trusting = replace(weighed, doubt=self._times.doubt(steps, cold, unseen=0.0))
            if trusting.pays:
                return WeighedClaim(claim, steps, trusting)
        return WeighedClaim(plain, plain_steps, without_probe)

    def _steps_of(self, claim: Claim, plan: Plan) -> list[StepShape]:
        apart, most_rows = self._probes_apart, self._step_rows
        return claim_steps(claim, plan.prompt_tokens, self._step_tokens, step_rows=most_rows, probes_apart=apart)
