"""The cost gate: of what a lookup found, reuse only what pays, by what this engine's own steps were seen to take."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from semblend_core.contract import DeclineReason, Glimpse, Namespace, Plan, Span
from semblend_core.costs import (
    CostFile,
    Judgement,
    Judgements,
    Lookup,
    Lookups,
    Part,
    Step,
    StepClock,
    StepTimes,
    Trials,
)
from semblend_core.costs.fetch_times import FetchTimes
from semblend_core.planning import CostModel
from semblend_core.serving.choosing import Chooser
from semblend_core.serving.claims import Claim
from semblend_core.serving.containment import contained
from semblend_core.serving.forecast import cold_steps
from semblend_core.serving.hindsight import Hindsight
from semblend_core.serving.weighing import SMALL_LOSS, ClaimMaker, Weigher
from semblend_core.settings import Settings
from semblend_core.telemetry import AuditSink, NoAudit

LEAST_SPENT_US = 100.0
"""On a lookup and its judgement, however fast the clock says that they were."""
FIRST_SAVE = 16
"""Steps that were looked at."""
SAVED_EVERY_S = 60.0


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
        probes_apart: bool = True,
        step_rows: int | None = None,
    ) -> None:
        """``spending``: what is computed of such spans, by their tier's budget.

        ``probes_apart``: probes are steps of their own, and not computed in the step of their rows. ``step_rows``: the
        most that one step has room for; None: as many as it has tokens.
        """
        self.is_on = settings.cost_gate and CostModel.from_settings(settings) is None
        self._step_tokens = step_tokens
        self._file = CostFile.of(settings.cost_dir, identity) if self.is_on and identity is not None else None
        self.times = (self._file.load() if self._file is not None else None) or StepTimes()
        self._clock = StepClock(self._took, now)
        # What a prefill takes is seen in any request that is computed, so one cold trial at a time is enough.
        self._trials, self._cold_trials, self._lookups = Trials(), Trials(most_at_once=1), Lookups(now)
        self._fetches = FetchTimes()
        self._weigher = Weigher(settings, step_tokens, self.times, self._fetches, spending, probes_apart, step_rows)
        self._chooser = Chooser(self._weigher, self._trials, self._cold_trials)
        surprises = self._weigher.surprises
        self._hindsight = Hindsight(self.times, surprises, self._trials, self._cold_trials, self._lookups, step_tokens)
        self._judgements = Judgements(audit or NoAudit(), self._hindsight.measured)
        self._learned, self._now, self._saved_at = 0, now, now()
        self._asked_at = self._saved_at
        """When it was asked whether a lookup may pay."""
        self._lookup: Lookup | None = None
        """The one that is made for that."""
        self._chosen: Judgement | None = None
        """The last one that reuses, while its claim is made."""
        self._saving: threading.Thread | None = None

    # --- The engine's steps ------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """The engine begins to schedule."""
        if self.is_on:
            self._clock.begin()

    def apart(self) -> AbstractContextManager[None]:
        """Around lookups and claims: they are spent when the first step begins, whatever the gate decides."""
        return self._looking() if self.is_on else nullcontext()

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
    def step_finished(self, made_for: Any, ended: float | None = None) -> None:
        """Its results are here. ``ended``: since when by the gate's clock, where the engine asks for them late."""
        if self.is_on:
            self._clock.finished(made_for, ended)

    def prefill_ms(self, tokens: int) -> float:
        """What computing so many tokens of a prompt takes beside others, from its beginning on; 0: not known."""
        if not self.is_on or not self.times.is_ready:
            return 0.0
        return self.times.prefill(tokens) / 1e3

    # --- A request ---------------------------------------------------------------------------------------------------

    def may_pay(self, tokens: int, glimpse: Callable[[], Glimpse | None] = lambda: None) -> bool:
        """Whether a lookup is worth its time, where ``tokens`` would be computed without reuse.

        ``glimpse``: asks what the lookup would find, if that matters.
        """
        if not self.is_on:
            return True
        self._asked_at = self._now()
        self._lookup = self._lookups.ask(tokens, glimpse)
        if self._lookup is not None and not self._lookup.stands_for:
            self.found_nothing()
        return self._lookup is not None

    def found_nothing(self) -> None:
        """The lookup that might have paid has found no plan, or its glimpse no reason for one."""
        if self._lookup is not None and self.times.is_ready:
            self._hindsight.missed(self._lookup, self._spent())
        self._lookup = None

    def choose(self, request_id: str, namespace: Namespace, plan: Plan, claim_for: ClaimMaker) -> Claim | DeclineReason:
        """The claim that is predicted to be fastest, of the whole plan or of a part of it; or why there is none."""
        if not self.is_on:
            return claim_for(plan, 0)
        if not self.times.is_ready:
            return DeclineReason.COSTS_UNKNOWN
        self._hindsight.compare_shared()
        earlier = self._judgements.find(request_id)
        if earlier is not None and earlier.is_cold_trial and earlier.exact_prefix_tokens == plan.exact_prefix_tokens:
            self._lookup = None
            return DeclineReason.DOES_NOT_PAY  # As was decided, or in a busy engine none would ever be made.
        cold = cold_steps(plan.exact_prefix_tokens, plan.prompt_tokens, self._step_tokens)
        lookup = self._lookup or Lookup(plan.prompt_tokens - plan.exact_prefix_tokens)
        self._lookup = None
        asked = lookup.stands_for if earlier is None else 0  # Asked again, it is one request still.
        choice = self._chooser.choose(plan, cold, claim_for, asked)
        if isinstance(choice, DeclineReason):
            self._hindsight.missed(lookup, self._spent())
            return choice
        weighed = choice.weighed
        reason = DeclineReason.DOES_NOT_PAY if choice.claim is None else None
        judgement = Judgement(
            request_id,
            namespace,
            plan.prompt_tokens,
            plan.exact_prefix_tokens,
            reason,
            choice.trial_of,
            weighed.cold,
            weighed.reuse,
            weighed.doubt,
            lookup,
            weighed.waiting,
            weighed.forecast,
            self._spent(),
        )
        self._judgements.add(judgement)
        if choice.claim is not None:
            self._chosen = judgement
            return choice.claim
        if choice.trial_of is None:
            self._hindsight.declined(judgement)
        return DeclineReason.DOES_NOT_PAY

    def donors_gone(self, request_id: str) -> None:
        """Donors of the plan that was chosen last are gone, so nothing will be seen of it."""
        judgement = self.forget(request_id)
        if judgement is not None:
            self._lookup, self._chosen = judgement.lookup, None  # It goes on, without them.

    def forget(self, request_id: str) -> Judgement | None:
        """What was judged for this id will not be: a new request goes by it, or the old one starts anew."""
        judgement = self._judgements.drop(request_id)
        if judgement is not None and judgement.trial_of is not None:
            trials = self._cold_trials if judgement.is_cold_trial else self._trials
            trials.was_not_made(judgement.trial_of)
        return judgement

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
            judgement.waited += seconds * 1e6

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

    @contextmanager
    def _looking(self) -> Iterator[None]:
        self._chosen = None
        try:
            with self._clock.apart():
                yield
        finally:
            if self._chosen is not None:
                self._chosen.looking = self._spent()

    def _took(self, step: Step, microseconds: float) -> None:
        if step.shape is None:
            return
        if not step.shape.reuses:
            self._cold_trials.not_needed(step.shape.kind)
            self._chooser.timed_prefills |= step.shape.sequences > 0
        self.times.observe(step.shape, microseconds, overlapped=step.overlapped)
        self._judgements.took(step, microseconds)
        self._learned += 1
        self._hindsight.step_ended(step.shape)
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
