"""Lookups take time too: the gate asks for one where it may pay."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from semblend_core.contract import DeclineReason, Plan
from semblend_core.costs import Part, StepShape
from semblend_core.settings import QualityTier

from .engines import NAMESPACE, StepWork, SyntheticEngine, cold_work, cpu, large_model_on_gpu, passages, serve_all


def look_up(engine: SyntheticEngine, prompt: int, seconds: float) -> bool:
    """For a prompt of which nothing is known."""
    looked_up = engine.gate.may_pay(prompt)
    if looked_up:
        engine.now += seconds
        engine.gate.found_nothing()
    engine.serve_cold(prompt)
    return looked_up


@pytest.mark.parametrize(("share", "spared"), [(0.2, True), (0.005, False)])
def test_lookups_that_find_nothing_are_made_rarely_where_they_take_long(share: float, spared: bool) -> None:
    engine = SyntheticEngine(large_model_on_gpu)
    seconds = share * engine.takes(cold_work(0, 2000)) / 1e6
    looked_up = sum(look_up(engine, 2000, seconds) for _ in range(200))
    assert looked_up < 40 if spared else looked_up == 200


def test_a_trial_that_spares_less_than_its_lookup_took_does_not_bring_lookups_back() -> None:
    def formula(step: StepShape) -> float:
        return 8000 + 5.0 * step.tokens + 2000 * step.reuses

    engine, plan = SyntheticEngine(formula, "fast", settings={"min_gain_us": 1e9}), passages(2000, 1)
    assert engine.whole(plan) < 0.7
    looked_up = 0
    for _ in range(200):
        worth_it = engine.gate.may_pay(2000)
        looked_up += worth_it
        if worth_it:
            engine.now += 2 * engine.takes(cold_work(0, 2000)) / 1e6
            engine.serve(plan)
        else:
            engine.serve_cold(2000)
    assert looked_up < 40


@pytest.mark.parametrize(("share", "given_up"), [(0.01, False), (0.8, True)])
def test_what_is_done_for_a_claim_before_its_first_step_is_held_against_what_it_spares(
    share: float, given_up: bool
) -> None:
    engine, plan = SyntheticEngine(large_model_on_gpu, "fast"), passages(2000, 1)
    serve_all(engine, 3)
    assert engine.whole(plan) < 0.5
    engine.claiming_s = share * engine.takes(cold_work(0, 2000)) / 1e6
    looked_up = 0
    for _ in range(100):
        if engine.gate.may_pay(2000):
            looked_up += engine.serve(plan).claim is not None
        else:
            engine.serve_cold(2000)
    assert looked_up < 30 if given_up else looked_up > 90


@pytest.mark.parametrize(("share", "spared"), [(0.2, True), (0.005, False)])
def test_what_is_looked_up_rarely_is_tried_as_often_as_if_it_were_looked_up_always(share: float, spared: bool) -> None:
    engine, tried, looked_up = SyntheticEngine(lambda step: cpu(step) + 2e6 * step.reuses, "fast"), 0, 0
    for _ in range(400):
        if engine.gate.may_pay(2000):
            looked_up += 1
            engine.now += share * engine.takes(cold_work(0, 2000)) / 1e6
            tried += engine.serve(passages(2000, 1)).claim is not None
        else:
            engine.serve_cold(2000)
    assert looked_up < 80 if spared else looked_up == 400
    assert 5 <= tried <= 7


def test_slow_first_prefills_are_not_followed_by_many_lookups_in_vain() -> None:
    """Kernels are compiled for a new size, so reuse seems to spare a lot for a while. In truth it spares nothing."""
    slow = 12

    def formula(step: StepShape) -> float:
        nonlocal slow
        if step.sequences and not step.reuses and step.tokens > 1900 and slow:
            slow -= 1
            return 107_000.0
        return max(16_500.0, 8.0 * step.tokens) + 2000 * step.reuses if step.sequences else 5000.0

    engine, plan, looked_up = SyntheticEngine(formula), passages(2000, 4), []
    for _ in range(60):
        engine.serve_cold(2000)  # Somebody without reuse.
        looked_up.append(engine.gate.may_pay(2000))
        if looked_up[-1]:
            engine.now += 2e-3
            engine.serve(plan)
        else:
            engine.serve_cold(2000)
    assert sum(looked_up[20:]) < 12


LOOKUP = 0.2
"""Of a cold prefill's time."""


def engine_that_reuses(plan: Plan, tier: QualityTier = "fast") -> SyntheticEngine:
    """It knows that this pays, or that its tier declines it."""
    engine = SyntheticEngine(large_model_on_gpu, tier)
    for _ in range(12):
        engine.serve_cold(plan.prompt_tokens)
        engine.gate.may_pay(plan.prompt_tokens)
        engine.serve(passages(plan.prompt_tokens, 1))
    assert engine.gate.may_pay(plan.prompt_tokens)
    return engine


def lookups_made(engine: SyntheticEngine, plan: Plan, behind: Callable[[str], None] = lambda request_id: None) -> int:
    """Of 200 prompts with this plan, each of which is computed in the end. ``behind``: what happens to the plan."""
    looked_up, (prefill,) = 0, cold_work(0, plan.prompt_tokens)
    for number in range(200):
        request_id = f"r{number}"
        if engine.gate.may_pay(plan.prompt_tokens):
            looked_up += 1
            with engine.gate.apart():
                engine.now += LOOKUP * engine.takes([prefill]) / 1e6
                engine.gate.choose(request_id, NAMESPACE, plan, engine.claim_for)
                behind(request_id)
        engine.run(request_id, prefill)
        engine.run("", StepWork([Part(plan.prompt_tokens, 1, decodes=True)]))
    return looked_up


def test_plans_that_the_tier_declines_cost_their_lookups() -> None:
    plan = passages(2000, 10)
    assert lookups_made(engine_that_reuses(plan, "strict"), plan) < 60


def test_plans_that_the_engine_cannot_load_cost_their_lookups() -> None:
    plan = passages(2000, 1)
    engine = engine_that_reuses(plan)
    engine.claim_for = lambda plan, join_within: DeclineReason.UNSUPPORTED_REQUEST  # type: ignore[method-assign]
    assert lookups_made(engine, plan) < 60


def test_a_plan_that_is_not_loaded_after_all_has_spared_nothing() -> None:
    plan = passages(2000, 1)
    assert lookups_made(engine_that_reuses(plan), plan) < 60


def test_a_lookup_whose_donors_are_gone_is_one_with_what_follows() -> None:
    plan = passages(2000, 1)
    engine = engine_that_reuses(plan)

    def lose_donors(request_id: str) -> None:
        engine.gate.donors_gone(request_id)
        engine.gate.found_nothing()

    assert lookups_made(engine, plan, lose_donors) < 60
