"""The cost gate: of what a lookup found, reuse only what pays, by what this engine's own steps were seen to take."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from semblend_core.contract import DeclineReason, Namespace, Plan
from semblend_core.costs import CostFile, Judgement, Judgements, Part, Step, StepClock, StepShape, StepTimes
from semblend_core.planning import CostModel
from semblend_core.recompute import Corrected, choose_policy
from semblend_core.serving.claims import Claim
from semblend_core.serving.containment import contained
from semblend_core.serving.forecast import claim_steps, cold_steps, plan_steps, smaller_plans
from semblend_core.settings import Settings
from semblend_core.telemetry import AuditSink, NoAudit

ClaimMaker: TypeAlias = Callable[[Plan, int], Claim | DeclineReason]
"""What the engine makes of a plan. Rows with at most so many tokens between them are to become one."""

LEAST_GAIN = 0.03
"""Of the cold prefill's time."""
CLAIMS_TRIED = 2
"""Claims that are made for one request: those of the plans that look best."""
TYPICAL_SEAM = 64
"""Tokens that a tier computes of a span at most, unless it spends all it may."""
MOST_JOINED_TOKENS = 128
FIRST_TRIAL_AFTER = 4
"""Doubtful requests. The next trial comes after twice as many, and so on."""
RAREST_TRIAL = 1024
SAVED_EVERY = 256
"""Steps that were learned from."""


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
    ) -> None:
        self.is_on = settings.cost_gate and CostModel.from_settings(settings) is None
        self._settings, self._step_tokens = settings, step_tokens
        self._file = CostFile.of(settings.cost_dir, identity) if self.is_on and identity is not None else None
        self.times = (self._file.load() if self._file is not None else None) or StepTimes()
        self._clock = StepClock(self._took, now)
        self._judgements = Judgements(audit or NoAudit())
        self._doubtful, self._next_trial = 0, FIRST_TRIAL_AFTER
        self._learned = 0

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

    # --- A request ---------------------------------------------------------------------------------------------------

    def choose(self, request_id: str, namespace: Namespace, plan: Plan, claim_for: ClaimMaker) -> Claim | DeclineReason:
        """The claim that is predicted to be fastest, of the whole plan or of a part of it; or why there is none."""
        if not self.is_on:
            return claim_for(plan, 0)
        if not self.times.is_ready:
            return DeclineReason.COSTS_UNKNOWN
        cold = cold_steps(plan, self._step_tokens)
        best: tuple[float, Claim, list[StepShape]] | None = None
        refusal = DeclineReason.DOES_NOT_PAY
        for candidate in self._by_promise(plan):
            claim = claim_for(candidate, self._worth_joining(candidate))
            if isinstance(claim, DeclineReason):
                refusal = claim if candidate is plan else refusal
                continue
            steps = claim_steps(claim, plan.prompt_tokens, self._step_tokens)
            predicted = self.times.predict(steps)
            if best is None or predicted < best[0]:
                best = (predicted, claim, steps)
        if best is None:
            return refusal
        reuse, claim, steps = best
        judgement = self._judge(request_id, namespace, plan, cold, reuse, steps)
        self._judgements.add(judgement)
        return claim if judgement.reason is None else judgement.reason

    def close(self) -> None:
        self._judgements.close()
        if self._file is not None and self.times.is_ready:
            self._file.save(self.times.as_json())

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _by_promise(self, plan: Plan) -> list[Plan]:
        """The plan and smaller ones, those first that look fastest by about what their tier computes of them.

        To make a claim takes longer than to weigh a plan.
        """
        settings = self._settings
        least = settings.min_reuse_ratio * (plan.prompt_tokens - plan.exact_prefix_tokens)
        least = max(least, settings.min_saved_tokens)
        plans = [plan, *(each for each in smaller_plans(plan) if each.reused_tokens >= least)]
        if len(plans) == 1:
            return plans
        return sorted(plans, key=self._promise)[:CLAIMS_TRIED]

    def _promise(self, plan: Plan) -> float:
        choice = choose_policy(self._settings.quality_tier, plan, probing=False, limit=self._settings.recompute_limit)
        if choice is None:
            return math.inf
        most_seam = None if isinstance(choice.policy, Corrected) else TYPICAL_SEAM
        return self.times.predict(plan_steps(plan, self._step_tokens, choice.budget, most_seam))

    def _worth_joining(self, plan: Plan) -> int:
        """Tokens that are computed faster than another sequence."""
        beyond = self.times.cost("token_beyond_flat") if plan.computed_tokens > self._step_tokens // 4 else 0.0
        token = self.times.cost("token") + beyond
        row = self.times.cost("sequence") + self.times.cost("context") * plan.prompt_tokens / 2
        return MOST_JOINED_TOKENS if token * MOST_JOINED_TOKENS <= row else int(row / token)

    def _judge(
        self,
        request_id: str,
        namespace: Namespace,
        plan: Plan,
        cold_shapes: list[StepShape],
        reuse: float,
        steps: list[StepShape],
    ) -> Judgement:
        cold = self.times.predict(cold_shapes)
        doubt = self.times.doubt(steps, cold_shapes)
        needed = max(self._settings.min_gain_us, LEAST_GAIN * cold)
        gain = cold - reuse
        pays = gain - doubt > needed
        # What may pay for all that is known is tried now and then, or it would never be known.
        trial = not pays and gain + 2 * doubt > needed and -gain < cold and self._tries()
        reason = None if pays or trial else DeclineReason.DOES_NOT_PAY
        return Judgement(request_id, namespace, plan.prompt_tokens, reason, trial, cold, reuse, doubt)

    def _tries(self) -> bool:
        self._doubtful += 1
        if self._doubtful < self._next_trial:
            return False
        self._doubtful, self._next_trial = 0, min(2 * self._next_trial, RAREST_TRIAL)
        return True

    def _took(self, step: Step, microseconds: float) -> None:
        if step.shape is None:
            return
        self.times.observe(step.shape, microseconds)
        self._judgements.took(step, microseconds)
        self._learned += 1
        if self._file is not None and self.times.is_ready and self._learned % SAVED_EVERY == 0:
            # The scheduler's thread waits for no disk.
            threading.Thread(target=self._file.save, args=(self.times.as_json(),), daemon=True).start()
