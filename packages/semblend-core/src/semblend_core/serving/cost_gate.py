"""The cost gate: of what a lookup found, reuse only what pays, by what this engine's own steps were seen to take."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from semblend_core.contract import DeclineReason, Namespace, Plan, Span
from semblend_core.costs import (
    CostFile,
    Judgement,
    Judgements,
    Lookups,
    Part,
    Step,
    StepClock,
    StepShape,
    StepTimes,
    Trials,
)
from semblend_core.costs.fetch_times import FetchTimes
from semblend_core.costs.trials import FIRST_DEAR_TRIAL_AFTER, FIRST_LOSING_TRIAL_AFTER, FIRST_TRIAL_AFTER
from semblend_core.planning import CostModel
from semblend_core.recompute.tiers import choose_policy_for
from semblend_core.serving.claims import Claim
from semblend_core.serving.containment import contained
from semblend_core.serving.forecast import claim_steps, cold_steps, planned_steps
from semblend_core.settings import Settings
from semblend_core.telemetry import AuditSink, NoAudit

ClaimMaker: TypeAlias = Callable[[Plan, int], Claim | DeclineReason]
"""What the engine makes of a plan. Rows with at most so many tokens between them are to become one."""

LEAST_GAIN = 0.03
"""Of the cold prefill's time."""
SMALL_SHARE = LEAST_GAIN / 2
"""Of the cold prefill's time. A lookup that takes no more is never spared: the next may find something."""
SMALL_LOSS = 0.1
"""Of the cold prefill's time. The sum over features may be so far off without being in doubt of it."""
LEAST_SPENT_US = 100.0
"""On a lookup and its judgement, however fast the clock says that they were."""
MOST_CLAIMS = 2
"""That are made for one request."""
NEARLY_AS_GOOD = 1.1
MOST_JOINED_TOKENS = 128
FIRST_SAVE = 16
"""Steps that were looked at."""
SAVED_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class _Forecast:
    spans: tuple[Span, ...]
    steps: list[StepShape]
    predicted: float


@dataclass(frozen=True, slots=True)
class _Weighed:
    """In microseconds."""

    cold: float
    reuse: float
    doubt: float
    least_gain: float
    waiting: float
    """Of ``reuse``: until donors have come that are not in memory."""

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
            return FIRST_DEAR_TRIAL_AFTER * self.cold / self.reuse
        if self.may_pay:
            return FIRST_TRIAL_AFTER
        if self.reuse < 2 * self.cold:
            return FIRST_LOSING_TRIAL_AFTER
        return FIRST_DEAR_TRIAL_AFTER * self.reuse / self.cold


class CostGate:
    """Times the engine's steps, and judges plans by what it learned. Called on the scheduler's thread only.

    ``step_tokens``: the most that the engine computes in one step. ``identity``: whatever the costs depend on, as
    engine, version, model, dtype and device; costs are kept under it. Where settings give the costs, or the gate is
    off, nothing is timed and every plan is taken.
    """

    def __init__(
        self,
        settings: Settings,
        step_tokens: int,
        identity: Mapping[str, str] | None = None,
        audit: AuditSink | None = None,
        now: Callable[[], float] = time.perf_counter,
        spending: Callable[[Sequence[Span]], float] = lambda spans: 1.0,
    ) -> None:
        """``spending``: what is computed of such spans, by their tier's budget."""
        self._spending = spending
        self.is_on = settings.cost_gate and CostModel.from_settings(settings) is None
        self._settings, self._step_tokens = settings, step_tokens
        self._file = CostFile.of(settings.cost_dir, identity) if self.is_on and identity is not None else None
        self.times = (self._file.load() if self._file is not None else None) or StepTimes()
        self._clock = StepClock(self._took, now)
        self._judgements = Judgements(audit or NoAudit(), self._measured)
        self._trials, self._cold_trials, self._lookups = Trials(), Trials(), Lookups()
        self._fetches = FetchTimes()
        self._learned, self._now, self._saved_at = 0, now, now()
        self._timed_prefills = False
        """Otherwise what a prefill takes is known from an earlier process only."""
        self._asked_at = self._saved_at
        """When the lookup began whose plan is judged."""
        self._saving: threading.Thread | None = None

    # --- The engine's steps ------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """The engine begins to schedule."""
        if self.is_on:
            self._clock.begin()

    def apart(self) -> AbstractContextManager[None]:
        """Around lookups: they are spent when the gate decides, whatever it decides."""
        return self._clock.apart() if self.is_on else nullcontext()

    def wants(self, tokens: int, sequences: int) -> bool:
        """Whether to say what a step of this size computes."""
        return self.is_on and self._clock.wants(tokens, sequences)

    @contained
    def step_scheduled(
        self,
        made_for: Any,
        parts: list[Part] | None = None,
        moved: Mapping[str, int] | None = None,
        corrected: int = 0,
    ) -> None:
        """``parts``: what its sequences compute, rows included, by their request's id; None: it was not wanted.

        ``moved``: tokens whose KV is loaded, by request.
        """
        if self.is_on:
            self._clock.scheduled(made_for, parts, moved or {}, corrected)

    @contained
    def step_finished(self, made_for: Any) -> None:
        if self.is_on:
            self._clock.finished(made_for)

    def prefill_ms(self, tokens: int) -> float:
        """What computing so many tokens of a prompt takes beside others, from its beginning on; 0: not known."""
        if not self.is_on or not self.times.is_ready:
            return 0.0
        return self.times.prefill(tokens) / 1e3

    # --- A request ---------------------------------------------------------------------------------------------------

    def may_pay(self, tokens: int) -> bool:
        """Whether a lookup is worth its time, where ``tokens`` would be computed without reuse."""
        self._asked_at = self._now()
        return not self.is_on or self._lookups.are_worth_it(tokens)

    def found_nothing(self, tokens: int) -> None:
        """The lookup for such a request has found no plan."""
        if self.is_on and self.times.is_ready:
            spent = self._spent()
            if spent > SMALL_SHARE * self.times.predict(cold_steps(0, tokens, self._step_tokens)):
                self._lookups.found_nothing(tokens, spent)

    def choose(self, request_id: str, namespace: Namespace, plan: Plan, claim_for: ClaimMaker) -> Claim | DeclineReason:
        """The claim that is predicted to be fastest, of the whole plan or of a part of it; or why there is none."""
        if not self.is_on:
            return claim_for(plan, 0)
        if not self.times.is_ready:
            return DeclineReason.COSTS_UNKNOWN
        cold = cold_steps(plan.exact_prefix_tokens, plan.prompt_tokens, self._step_tokens)
        computed = plan.prompt_tokens - plan.exact_prefix_tokens
        requests = self._lookups.stand_for(computed)
        forecasts = self._forecasts(plan)
        if not forecasts:
            return DeclineReason.QUALITY_TIER
        weighed, kind = self._weigh(cold, forecasts[0].steps), forecasts[0].steps[0].kind
        chosen: Claim | DeclineReason = DeclineReason.DOES_NOT_PAY
        trial = not weighed.pays and self._trials.is_due(kind, weighed.trial_after, requests)
        # To make a claim takes longer than to weigh a plan, and hardly any is faster than its plan promises.
        if weighed.pays or trial:
            made = self._make_claims(plan, forecasts, claim_for)
            if isinstance(made, DeclineReason):
                return made
            seemed_to_pay = weighed.pays
            chosen, steps, weighed = self._best_of(plan, cold, made)
            trial = trial and not weighed.pays
            if seemed_to_pay and not weighed.pays:
                kind = steps[0].kind
                trial = self._trials.is_due(kind, max(FIRST_DEAR_TRIAL_AFTER, weighed.trial_after), requests)
        reason = None if weighed.pays or trial else DeclineReason.DOES_NOT_PAY
        cold_after = weighed.trial_after if self._timed_prefills else FIRST_LOSING_TRIAL_AFTER
        if weighed.pays and self._cold_trials.is_due(cold[0].kind, cold_after):
            # Where all is reused, nobody sees any more what a prefill takes.
            trial, kind, reason = True, cold[0].kind, DeclineReason.DOES_NOT_PAY
        spent = self._spent()
        if not trial:
            spared = weighed.cold - weighed.reuse if weighed.pays else 0.0
            if spared > spent or spent > SMALL_SHARE * weighed.cold:
                self._lookups.note(computed, spared - spent)
        self._judgements.add(
            Judgement(
                request_id,
                namespace,
                plan.prompt_tokens,
                plan.exact_prefix_tokens,
                reason,
                kind if trial else None,
                weighed.cold,
                weighed.reuse,
                weighed.doubt,
                weighed.waiting,
                spent,
            )
        )
        return chosen if reason is None else reason

    def donors_gone(self, request_id: str) -> None:
        """Donors of the plan that was chosen last are gone, so nothing will be seen of it."""
        judgement = self._judgements.drop(request_id)
        if judgement is not None and judgement.trial_of is not None:
            self._trials.was_not_made(judgement.trial_of)

    def may_wait_s(self, request_id: str) -> float:
        """How long reuse stays worth while a request waits for its donors: as long as it would spare by then."""
        judgement = self._judgements.find(request_id)
        if judgement is None:
            return math.inf
        spared = judgement.cold - (judgement.reuse - judgement.waiting)
        return max(spared, SMALL_LOSS * judgement.cold) / 1e6

    def waited(self, request_id: str, tokens: int, seconds: float) -> None:
        """A request was held up so long by the fetch of so many tokens; 0: they had come before its turn."""
        if not self.is_on:
            return
        self._fetches.note(tokens, seconds * 1e6)
        judgement = self._judgements.find(request_id)
        if judgement is not None:
            judgement.measured += seconds * 1e6

    def close(self) -> None:
        self._judgements.close()
        if self._saving is not None:  # What it knew is older, and must not come last.
            self._saving.join()
        if self._file is not None and self.times.is_ready:
            self._file.save(self.times.as_json())

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _spent(self) -> float:
        """On the lookup, since it was asked for; in microseconds."""
        return LEAST_SPENT_US + 1e6 * (self._now() - self._asked_at)

    def _forecasts(self, plan: Plan) -> list[_Forecast]:
        """Of the plan and of smaller ones, by about what their tier computes of them. The fastest first."""
        tier, limit = self._settings.quality_tier, self._settings.recompute_limit
        found = []
        for spans in (plan.spans, *self._fewer_spans(plan)):
            spending = self._spending(spans)
            choice = choose_policy_for(tier, spans, probing=False, limit=limit, spending=spending)
            if choice is not None:
                most_seam = choice.policy.longest_seam
                steps = planned_steps(plan, spans, self._step_tokens, choice.budget, most_seam)
                found.append(_Forecast(spans, steps, self.times.predict(steps)))
        return sorted(found, key=lambda forecast: forecast.predicted)

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

    def _make_claims(
        self, plan: Plan, forecasts: list[_Forecast], claim_for: ClaimMaker
    ) -> list[tuple[Claim, list[StepShape]]] | DeclineReason:
        """Claims, with their steps, of those forecasts that are nearly as good as the best."""
        made: list[tuple[Claim, list[StepShape]]] = []
        refusal = DeclineReason.DOES_NOT_PAY
        for forecast in forecasts:
            if made and (len(made) == MOST_CLAIMS or forecast.predicted > NEARLY_AS_GOOD * forecasts[0].predicted):
                break
            part = plan if forecast.spans is plan.spans else plan.only(forecast.spans)
            claim = claim_for(part, self._worth_joining(part))
            if isinstance(claim, DeclineReason):
                refusal = claim
                continue
            made.append((claim, claim_steps(claim, plan.prompt_tokens, self._step_tokens)))
        return made or refusal

    def _worth_joining(self, plan: Plan) -> int:
        """Tokens that are computed faster than another sequence."""
        beyond = self.times.cost("token_beyond_flat") if plan.computed_tokens > self._step_tokens // 4 else 0.0
        token = self.times.cost("token") + beyond
        row = self.times.cost("sequence") + self.times.cost("context") * plan.prompt_tokens / 2
        return MOST_JOINED_TOKENS if token * MOST_JOINED_TOKENS <= row else int(row / token)

    def _weigh(self, cold_steps: list[StepShape], steps: list[StepShape]) -> _Weighed:
        cold, waiting = self.times.predict(cold_steps), self._fetches.expected(sum(step.moved for step in steps))
        reuse = self.times.predict(steps) + waiting
        least_gain = max(self._settings.min_gain_us, LEAST_GAIN * cold)
        return _Weighed(cold, reuse, self.times.doubt(steps, cold_steps), least_gain, waiting)

    def _best_of(
        self, plan: Plan, cold: list[StepShape], made: list[tuple[Claim, list[StepShape]]]
    ) -> tuple[Claim, list[StepShape], _Weighed]:
        """The fastest claim of those that pay; where none does, of all."""
        weighed = [self._weigh_claim(plan, cold, claim, steps) for claim, steps in made]
        paying = [each for each in weighed if each[2].pays]
        # Before a short prompt was seen, whatever computes few tokens is predicted to take as long as what computes
        # more. Of claims that pay even so, the one with fewer is made: nothing else would ever tell.
        return min(paying or weighed, key=lambda each: self.times.predict(each[1], hoping=bool(paying)))

    def _weigh_claim(
        self, plan: Plan, cold: list[StepShape], claim: Claim, steps: list[StepShape]
    ) -> tuple[Claim, list[StepShape], _Weighed]:
        """A claim with a probe if it pays with the probe's step, else without."""
        weighed = self._weigh(cold, steps)
        if claim.probing is None or weighed.pays:
            return claim, steps, weighed
        plain = claim.unprobed()
        plain_steps = claim_steps(plain, plan.prompt_tokens, self._step_tokens)
        without_probe = self._weigh(cold, plain_steps)
        if without_probe.pays:
            # Steps of a probe's kind are seen only if one is made, and answers are worth more with it.
            trusting = replace(weighed, doubt=self.times.doubt(steps, cold, unseen=0.0))
            if trusting.pays:
                return claim, steps, trusting
        return plain, plain_steps, without_probe

    def _measured(self, judgement: Judgement) -> None:
        """A trial that took less than what is done instead: the next tells whether that was luck."""
        if judgement.trial_of is None or judgement.measured >= (1 - LEAST_GAIN) * judgement.cold:
            return
        if judgement.reused:
            self._trials.went_well(judgement.trial_of)
            computed = judgement.prompt_tokens - judgement.exact_prefix_tokens
            self._lookups.note(computed, judgement.cold - judgement.measured - judgement.looking)
        elif judgement.reason is not None and judgement.measured < (1 - SMALL_LOSS) * judgement.cold:
            self._cold_trials.went_well(judgement.trial_of)

    def _took(self, step: Step, microseconds: float) -> None:
        if step.shape is None:
            return
        if not step.shape.reuses:
            self._cold_trials.not_needed(step.shape.kind)
            self._timed_prefills |= step.shape.sequences > 0
        self.times.observe(step.shape, microseconds, overlapped=step.overlapped)
        self._judgements.took(step, microseconds)
        self._learned += 1
        self._save_now_and_then()

    def _save_now_and_then(self) -> None:
        """Soon after the start, since some engines are ended without a word; then rarely."""
        due = self._learned == FIRST_SAVE or self._now() - self._saved_at > SAVED_EVERY_S
        if self._file is None or not due or not self.times.is_ready:
            return
        self._saved_at = self._now()
        if self._saving is not None and self._saving.is_alive():
            return
        # The scheduler's thread waits for no disk.
        self._saving = threading.Thread(target=self._file.save, args=(self.times.as_json(),), daemon=True)
        self._saving.start()
