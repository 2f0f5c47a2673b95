"""Engines that take exactly as long as a formula says, more or less."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from semblend_core.contract import DeclineReason, Namespace, Plan, Span
from semblend_core.costs import Part, StepShape
from semblend_core.serving import Claim, CostGate, claim_by_tier
from semblend_core.settings import QualityTier, Settings
from semblend_core.telemetry import NoAudit

Formula: TypeAlias = Callable[[StepShape], float]
"""Microseconds of a step."""

NAMESPACE = Namespace(
    model="m", revision="r", tokenizer="t", dtype="d", kv_layout="k", block_size=16, adapter=None, salt="tenant"
)
STEP_TOKENS = 8192


def small_model_on_gpu(step: StepShape) -> float:
    """Flat, then linear; steps that no graph holds take longer; loads and corrections take launches."""
    launches = 3000 * (step.tokens > 512) + 6000 * step.reuses + 6000 * (step.corrected > 0)
    computing = max(5000 + 2.0 * step.tokens, 1200 + 4.5 * step.tokens) + 2e-4 * step.attention
    return launches + computing + 0.002 * step.context + 60 * step.sequences + 0.25 * step.moved + 0.1 * step.corrected


def large_model_on_gpu(step: StepShape) -> float:
    launches = 3000 * (step.tokens > 512) + 6000 * step.reuses + 4000 * (step.corrected > 0)
    computing = max(9000 + 8.0 * step.tokens, 1200 + 22 * step.tokens) + 4e-4 * step.attention
    return launches + computing + 0.002 * step.context + 60 * step.sequences + 0.5 * step.moved + 0.2 * step.corrected


def cpu(step: StepShape) -> float:
    """Linear from the first token on."""
    return 1500 + 900 * step.tokens + 0.05 * step.attention + 200 * step.sequences + 3 * step.moved


def with_dear_steps(step: StepShape) -> float:
    """One step with reuse pays for a long prompt, two do not."""
    return 2000 + 18_000 * step.reuses + 5.0 * step.tokens


def with_dear_rows(step: StepShape) -> float:
    return small_model_on_gpu(step) + 4000 * step.sequences


def with_slow_prefills(step: StepShape) -> float:
    """Whatever computes a part of a prompt is launched piece by piece; a step that only decodes replays a graph."""
    fixed = 50_000 if step.sequences else 5000
    return fixed + 3.0 * step.tokens + 1e-4 * step.attention + 15_000 * step.reuses + 0.3 * step.moved


def bound_by_launches(step: StepShape) -> float:
    """The same where launching goes on beside computing, so that up to 2,000 tokens take as long as one."""
    launching = 50_000 if step.sequences else 5000
    return max(launching, 22.0 * step.tokens) + 4e-4 * step.attention + 15_000 * step.reuses + 0.5 * step.moved


ENGINES: dict[str, Formula] = {
    formula.__name__: formula for formula in (small_model_on_gpu, large_model_on_gpu, cpu, with_dear_rows)
}
SLOW_TO_BEGIN: dict[str, Formula] = {formula.__name__: formula for formula in (with_slow_prefills, bound_by_launches)}
EVERY = ENGINES | SLOW_TO_BEGIN
LENGTHS = (2000, 6000, 16_000, 32_000)
COUNTS = (1, 4, 10)


def passages(prompt: int, count: int, gap: int = 50) -> Plan:
    """A prompt of ``count`` passages from as many donors, each behind a few new tokens, and a question."""
    each = (prompt - 60) // count
    return Plan.over("r", prompt, 0, [Span(n * each + gap, f"d{n}", 16, each - gap) for n in range(count)])


class Heard(NoAudit):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def emit(self, event: Any) -> None:
        self.events.append(event)


@dataclass
class Served:
    claim: Claim | None
    reason: DeclineReason | None
    microseconds: float
    """By the formula, without noise."""
    cold: float
    """The same without reuse."""

    @property
    def by_cold(self) -> float:
        return self.microseconds / self.cold


@dataclass
class SyntheticEngine:
    """Waits for every step. Times come late, never early, as they do."""

    formula: Formula
    tier: QualityTier = "balanced"
    noise: float = 0.03
    outliers: float = 0.0
    """Share of the steps that take ten times as long."""
    audit: Any = None
    settings: dict[str, Any] = field(default_factory=dict)
    identity: dict[str, str] | None = None
    probe_layers: int | None = None
    fetch_s: float | None = None
    """What requests wait for their donors; None: donors are in memory."""
    pieces: int = 1
    """That each row is computed in, whatever was forecast."""
    claiming_s: float = 0.0
    """What else is done for a claim before its first step."""
    decoders: int = 0
    """Other requests that decode in every step, far into their answers."""
    now: float = 0.0

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(7)
        self._requests = 0
        settings = Settings(**{"cost_dir": "none", "quality_tier": self.tier, **self.settings})
        self.gate = CostGate(settings, STEP_TOKENS, self.identity, self.audit, now=lambda: self.now)

    def serve_cold(self, prompt: int) -> None:
        """A prompt of which nothing is known."""
        self._compute("", prompt, cold_work(0, prompt))

    def serve(self, plan: Plan) -> Served:
        self._requests += 1
        request_id = f"r{self._requests}"
        with self.gate.apart():
            answer = self.gate.choose(request_id, NAMESPACE, plan, self.claim_for)
            claim = answer if isinstance(answer, Claim) else None
            self.now += self.claiming_s if claim is not None else 0.0
        cold = cold_work(plan.exact_prefix_tokens, plan.prompt_tokens)
        work = cold if claim is None else claimed_work(claim, plan.prompt_tokens, self.pieces)
        if claim is not None and self.fetch_s is not None:
            self.gate.waited(request_id, sum(span.length for span in claim.spans), self.fetch_s)
        self._compute(request_id, plan.prompt_tokens, work)
        reason = None if isinstance(answer, Claim) else answer
        return Served(claim, reason, self.takes(work), self.takes(cold))

    def serve_together(self, plan: Plan, count: int) -> list[bool]:
        """So many prompts with this plan in one step. Which of them reuse."""
        whole, moved, reused = StepWork([]), {}, []
        for _ in range(count):
            self._requests += 1
            request_id = f"r{self._requests}"
            answer = self.gate.choose(request_id, NAMESPACE, plan, self.claim_for)
            reused.append(isinstance(answer, Claim))
            prompt = plan.prompt_tokens
            (work,) = claimed_work(answer, prompt) if isinstance(answer, Claim) else cold_work(0, prompt)
            whole.parts += [part._replace(request_id=request_id) for part in work.parts]
            whole.corrected += work.corrected
            moved |= {request_id: work.moved} if work.moved else {}
        whole.moved = sum(moved.values())
        self._run(whole, moved)
        self.run("", StepWork([Part(plan.prompt_tokens, 1, decodes=True)]))
        return reused

    def claim_for(self, plan: Plan, join_within: int) -> Claim | DeclineReason:
        return claim_by_tier(
            plan, self.tier, 16, limit=None, correcting=True, join_within=join_within, probe_layers=self.probe_layers
        )

    def whole(self, plan: Plan) -> float:
        """What the whole plan takes, by what a cold prefill takes."""
        claim = self.claim_for(plan, 0)
        assert isinstance(claim, Claim)
        return self.takes(claimed_work(claim, plan.prompt_tokens)) / self.takes(cold_work(0, plan.prompt_tokens))

    def takes(self, work: list[StepWork]) -> float:
        return sum(self.formula(each.shape) for each in work)

    def _compute(self, request_id: str, prompt: int, work: list[StepWork]) -> None:
        for each in work:
            self.run(request_id, each)
        for _ in range(3):
            if self.gate.wants(tokens=1, sequences=1):
                self.run(request_id, StepWork([Part(prompt, 1, decodes=True)]))

    def results_at_once(self, first: StepWork, second: StepWork) -> None:
        """Two steps are under way, and the second one's results are asked for right behind the first one's."""
        for step in (first, second):
            self.gate.begin_step()
            self.gate.step_scheduled(step, step.parts)
        self.now += (self.formula(first.shape) + self.formula(second.shape)) / 1e6
        self.gate.step_finished(first)
        self.now += 20e-6
        self.gate.step_finished(second)

    def run(self, request_id: str, work: StepWork) -> None:
        parts = [part._replace(request_id=request_id) for part in work.parts]
        parts += [Part(8000 + number, 1, f"decoder{number}", decodes=True) for number in range(self.decoders)]
        moved = {request_id: work.moved} if work.moved else {}
        self._run(StepWork(parts, work.moved, work.corrected), moved)

    def _run(self, work: StepWork, moved: dict[str, int]) -> None:
        step = object()
        self.gate.begin_step()
        self.gate.step_scheduled(step, work.parts, moved, work.corrected)
        slow = 10.0 if self._random.random() < self.outliers else 1.0
        self.now += self.formula(work.shape) * slow * math.exp(self.noise * abs(self._random.standard_normal())) / 1e6
        self.gate.step_finished(step)


@dataclass
class StepWork:
    parts: list[Part]
    moved: int = 0
    corrected: int = 0

    @property
    def shape(self) -> StepShape:
        return StepShape.of(self.parts, moved=self.moved, corrected=self.corrected)


def cold_work(start: int, end: int) -> list[StepWork]:
    return [StepWork([Part(at, min(STEP_TOKENS, end - at))]) for at in range(start, end, STEP_TOKENS)]


def claimed_work(claim: Claim, prompt: int, pieces: int = 1) -> list[StepWork]:
    """Rows first, each in so many pieces. What one step cannot hold is computed in the next."""
    moved = sum(span.length for span in claim.spans)
    work = [StepWork([], moved, 0 if claim.correction is None else moved)]
    parts = []
    for start, end in claim.rows:
        cuts = np.linspace(start, end, pieces + 1, dtype=int).tolist()
        parts += [Part(first, last - first, is_row=True) for first, last in pairwise(cuts) if last > first]
    for part in [*parts, Part(claim.end, prompt - claim.end)]:
        before, left = part.before, part.tokens
        while left:
            room = STEP_TOKENS - sum(each.tokens for each in work[-1].parts)
            if not room:
                work.append(StepWork([]))
                continue
            work[-1].parts.append(Part(before, min(left, room), is_row=part.is_row))
            before, left = before + min(left, room), max(0, left - room)
    return work


def serve_all(engine: SyntheticEngine, rounds: int, seed: int = 1) -> dict[tuple[int, int], list[Served]]:
    """Every length with every number of passages, a cold prompt between any two."""
    random = np.random.default_rng(seed)
    served: dict[tuple[int, int], list[Served]] = {}
    for _ in range(rounds):
        for length in LENGTHS:
            for count in COUNTS:
                prompt = length + int(random.integers(-100, 100))
                engine.serve_cold(prompt)
                served.setdefault((length, count), []).append(engine.serve(passages(prompt, count)))
    return served
