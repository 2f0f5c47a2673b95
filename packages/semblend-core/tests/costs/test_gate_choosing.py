"""The gate plans only what pays, and tries the rest now and then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core.contract import DeclineReason, Plan, Span
from semblend_core.costs import StepShape
from semblend_core.serving import Claim
from semblend_core.serving.forecast import claim_steps
from semblend_core.serving.weighing import SMALL_LOSS
from semblend_core.settings import QualityTier

from .engines import (
    EVERY,
    NAMESPACE,
    SLOW_TO_BEGIN,
    Formula,
    Heard,
    SyntheticEngine,
    claimed_work,
    cold_work,
    cpu,
    large_model_on_gpu,
    passages,
    serve_all,
    small_model_on_gpu,
    with_dear_rows,
    with_dear_steps,
)


@pytest.mark.parametrize("tier", ["fast", "balanced"])
@pytest.mark.parametrize("formula", EVERY.values(), ids=EVERY)
def test_what_it_plans_is_never_slower_than_cold_and_what_pays_is_planned(formula: Formula, tier: QualityTier) -> None:
    engine = SyntheticEngine(formula, tier)
    for (length, count), served in serve_all(engine, 12).items():
        late = served[4:]
        assert np.median([each.by_cold for each in late]) <= 1.0
        # What takes about as long as cold is tried after 4 and after 8 more, which both may be late ones.
        assert sum(each.by_cold > 1.03 for each in late) <= 2, "more than rare trials"
        assert sum(each.by_cold > 1 + SMALL_LOSS for each in late) <= 1, "more than a rare trial of what loses"
        if engine.whole(passages(length, count)) < 0.85:
            assert np.mean([each.claim is not None for each in late]) > 0.8, (length, count)


def test_ten_passages_wait_until_fewer_have_shown_what_a_row_takes() -> None:
    engine = SyntheticEngine(with_dear_rows)
    for _ in range(4):
        engine.serve_cold(6000)
    assert engine.serve(passages(6000, 10)).reason is DeclineReason.DOES_NOT_PAY


@pytest.mark.parametrize("tier", ["fast", "balanced"])
@pytest.mark.parametrize("formula", SLOW_TO_BEGIN.values(), ids=SLOW_TO_BEGIN)
def test_a_long_plan_is_taken_at_once_although_no_short_prefill_was_seen(formula: Formula, tier: QualityTier) -> None:
    engine = SyntheticEngine(formula, tier)
    for length in (2000, 8000, 32_000, 16_000):
        engine.serve_cold(length)
    served = engine.serve(passages(32_000, 1))
    assert served.claim is not None
    assert served.by_cold < 0.3


def test_a_part_of_a_plan_is_taken_where_the_whole_does_not_pay() -> None:
    engine = SyntheticEngine(with_dear_rows, "fast")
    serve_all(engine, 4)
    long = Span(100, "long", 0, 4000)
    short = [Span(4300 + n * 200, f"d{n}", 0, 100) for n in range(8)]
    both = Plan.over("r", 6000, 0, [long, *short])
    assert engine.whole(both) > 1.03
    served = [engine.serve(both) for _ in range(8)]
    claims = [each.claim for each in served if each.claim is not None]
    assert len(claims) >= 3, "steps of this kind were not seen before, so one is tried first"
    assert {claim.donor_ids for claim in claims} == {("long",)}
    assert max(each.by_cold for each in served) <= 1.0
    assert served[-1].by_cold < 0.97


def test_of_two_claims_that_pay_the_shorter_is_made_before_any_short_prompt_was_seen() -> None:
    """Half of the plan would do, and as long as only that is made nobody learns that the whole is twice as fast."""
    engine, plan = SyntheticEngine(lambda step: 1000 + 800.0 * step.tokens + 2000 * step.reuses), passages(4000, 2)
    engine.probe_layers = 28
    for _ in range(3):
        engine.serve_cold(4000)
    served = [engine.serve(plan) for _ in range(20)]
    assert np.median([each.by_cold for each in served[5:]]) < 0.5


def test_rows_are_joined_where_another_sequence_costs_more_than_the_tokens_between() -> None:
    asked: list[int] = []
    for formula in (with_dear_rows, cpu):
        engine = SyntheticEngine(formula, "fast")
        serve_all(engine, 4)

        def claim_for(plan: Any, join_within: int, engine: SyntheticEngine = engine) -> Any:
            asked.append(join_within)
            return engine.claim_for(plan, join_within)

        engine.gate.choose("r", NAMESPACE, passages(16_000, 4), claim_for)
    assert asked[0] > 64
    assert asked[-1] < 4


@settings(deadline=None, max_examples=12)
@given(
    floor=st.floats(200, 20_000),
    token=st.floats(1, 1000),
    row=st.floats(0, 3000),
    load=st.floats(0, 30_000),
    moved=st.floats(0, 5),
)
def test_whatever_steps_cost_nothing_slower_is_planned_for_long(
    floor: float, token: float, row: float, load: float, moved: float
) -> None:
    def formula(step: Any) -> float:
        return floor + token * step.tokens + row * step.sequences + load * step.reuses + moved * step.moved

    engine = SyntheticEngine(formula, "fast", noise=0.02)
    for served in serve_all(engine, 12).values():
        assert np.median([each.by_cold for each in served[4:]]) <= 1.03


def test_what_would_pay_is_found_out_even_if_only_short_prompts_come() -> None:
    """A load is believed to cost more than they could spare: only a trial tells."""

    def cheap_loads(step: Any) -> float:
        return 8000 + 5.0 * step.tokens + 10 * step.sequences + 0.05 * step.moved

    engine = SyntheticEngine(cheap_loads, "fast")
    served = []
    for _ in range(30):
        engine.serve_cold(2000)
        served.append(engine.serve(passages(2000, 1)))
    assert served[1].claim is None
    assert all(each.claim is not None for each in served[-5:])


def test_where_all_is_reused_few_prompts_are_computed_to_see_what_that_takes() -> None:
    engine = SyntheticEngine(small_model_on_gpu)
    serve_all(engine, 3)
    served = [engine.serve(passages(6000, 1)) for _ in range(300)]
    cold = [number for number, each in enumerate(served) if each.claim is None]
    assert 1 <= len(cold) <= 3
    assert cold[0] > 30


def test_trials_of_what_does_not_pay_become_rare() -> None:
    engine = SyntheticEngine(lambda step: 20_000 + 2.0 * step.tokens + 1500 * step.reuses, "fast")
    planned = 0
    for _ in range(400):
        engine.serve_cold(800)
        planned += engine.serve(passages(800, 1)).claim is not None
    assert planned <= 8


def slow_in_pieces(times: float) -> Formula:
    """Rows that come in more pieces than forecast take long: what such steps take mends no forecast."""
    cold = sum(small_model_on_gpu(work.shape) for work in cold_work(0, 16_000))

    def formula(step: StepShape) -> float:
        return small_model_on_gpu(step) + (times * cold if step.sequences > 32 and step.corrected > 10_000 else 0)

    return formula


def serve_in_pieces(engine: SyntheticEngine, rounds: int) -> list[float]:
    """What a plan in pieces takes, by what a cold prefill takes. Beside it others keep the costs of steps known."""
    served = []
    for _ in range(rounds):
        engine.pieces = 1
        engine.serve(passages(16_000, 10))
        engine.serve_cold(16_000)
        engine.pieces = 16
        served.append(engine.serve(passages(16_000, 4)).by_cold)
    return served


@pytest.mark.parametrize("beside", [{}, {"fetch_s": 0.004}, {"decoders": 1}, {"decoders": 16}], ids=str)
@pytest.mark.parametrize("times", [0.6, 0.9])
def test_plans_that_do_not_come_about_as_forecast_are_given_up(times: float, beside: dict[str, Any]) -> None:
    engine = SyntheticEngine(slow_in_pieces(times), **beside)
    serve_all(engine, 3)
    served = serve_in_pieces(engine, 100)
    assert served[0] > 1.03, "no test of anything"
    assert sum(by_cold > 1.03 for by_cold in served) <= 6, "more than rare trials"


@pytest.mark.parametrize("formula", [small_model_on_gpu, large_model_on_gpu])
def test_what_pays_is_planned_beside_many_that_decode(formula: Formula) -> None:
    engine = SyntheticEngine(formula, decoders=64)
    for (length, count), served in serve_all(engine, 12).items():
        if engine.whole(passages(length, count)) < 0.8:
            assert np.mean([each.claim is not None for each in served[4:]]) > 0.8, (length, count)


@pytest.mark.parametrize("others", [(300, 1000), (3000, 6000)])
@pytest.mark.parametrize("formula", [small_model_on_gpu, large_model_on_gpu])
def test_prompts_that_always_come_together_are_reused_too(formula: Formula, others: tuple[int, ...]) -> None:
    """A plan is judged for itself. What it spares beside others is told roughly, and is enough to go on.

    Nor must a short prompt have been seen: what was seen of parts of larger steps will do.
    """
    engine, prompt = SyntheticEngine(formula), 2000 if formula is large_model_on_gpu else 6000
    for length in (*others, prompt) * 6:
        engine.serve_cold(length)
    reused = [engine.serve_together(passages(prompt, 4), 3) for _ in range(60)]
    assert np.mean(reused[20:]) > 0.8


def test_prompts_that_come_together_are_all_reused_again_after_a_slow_moment() -> None:
    """Whatever launches many kernels took as long as the prompt for a while; what the prompt takes is computing."""
    slow_moment = False

    def formula(step: StepShape) -> float:
        launching = (38_000.0 if slow_moment else 22_000.0) if step.tokens > 512 else 8000.0
        took = max(launching, 1200 + 6.3 * step.tokens) + 900 * step.reuses + 60 * step.sequences + 0.2 * step.moved
        return took + 2e-4 * step.attention if step.sequences else 5000.0

    engine, plan = SyntheticEngine(formula, noise=0.02), passages(6100, 1)
    assert engine.whole(plan) < 0.7
    served = None
    for number in range(40):
        slow_moment = number >= 10
        engine.serve_cold(6100)
        served = engine.serve(plan)
        if slow_moment and served.claim is None:
            break
    assert served is not None
    assert served.claim is None, "it was given up"
    slow_moment, reused = False, 0
    for _ in range(40):
        engine.serve_cold(6100)
        reused += sum(engine.serve_together(plan, 4))
    assert reused > 120


def test_a_plan_is_made_again_where_its_claim_promised_more_than_its_forecast() -> None:
    """What is corrected is no part of a forecast, so steps as it has them are never seen, and stay in doubt."""

    def formula(step: StepShape) -> float:
        return 5000 + 10.0 * step.tokens + 1000 * step.sequences + 0.2 * step.moved + 3000 * step.reuses

    engine, plan = SyntheticEngine(formula), passages(2000, 2)
    for length in (300, 1000, 2000, 4000) * 6:
        engine.serve_cold(length)
    assert engine.whole(plan) < 0.87
    served = [engine.serve(plan).claim is not None for _ in range(100)]
    assert np.mean(served[20:]) > 0.9


def test_one_that_is_asked_again_while_it_waits_is_one_request() -> None:
    """Donors come and go, so waiting requests are looked up again. What was decided to be computed stays so."""
    engine, plan, cold = SyntheticEngine(large_model_on_gpu), passages(6000, 4), 0
    serve_all(engine, 3)
    for number in range(300):
        answer = engine.gate.choose(f"x{number}", NAMESPACE, plan, engine.claim_for)
        if not isinstance(answer, Claim):
            cold += 1
            assert engine.gate.choose(f"x{number}", NAMESPACE, plan, engine.claim_for) is answer
        for work in claimed_work(answer, 6000) if isinstance(answer, Claim) else cold_work(0, 6000):
            engine.run(f"x{number}", work)
    assert 1 <= cold <= 4


def test_what_was_judged_of_another_by_its_id_says_nothing_of_a_request() -> None:
    heard, plan = Heard(), passages(6000, 1)
    engine = SyntheticEngine(large_model_on_gpu, "fast", audit=heard)
    serve_all(engine, 3)
    heard.events.clear()
    assert isinstance(engine.gate.choose("x", NAMESPACE, plan, engine.claim_for), Claim)
    engine.gate.forget("x")  # It was aborted, and another comes.
    for work in cold_work(0, 6000):
        engine.run("x", work)
    engine.gate.close()
    assert heard.events == []


def test_where_the_best_plan_was_slower_than_forecast_a_smaller_one_is_made() -> None:
    def formula(step: StepShape) -> float:
        return large_model_on_gpu(step) + 1e6 * (step.sequences > 100)

    engine = SyntheticEngine(formula, "fast")
    serve_all(engine, 3)
    engine.pieces = 16
    spans = [Span(100, "long", 0, 9000), *(Span(9200 + 640 * n, f"d{n}", 0, 600) for n in range(10))]
    plan = Plan.over("r", 16_000, 0, spans)
    served = []
    for _ in range(30):
        engine.serve_cold(16_000)
        served.append(engine.serve(plan))
    assert served[0].by_cold > 1.5, "no test of anything"
    late = [each.by_cold for each in served[-10:]]
    assert sum(by_cold < 0.6 for by_cold in late) >= 8, late


@pytest.mark.parametrize(
    "overruling", [{"cost_gate": False}, {"prefill_us_per_token": 10.0, "copy_us_per_token": 1.0}], ids=["off", "given"]
)
def test_settings_overrule_it(overruling: dict[str, Any]) -> None:
    engine = SyntheticEngine(with_dear_rows, settings=overruling)
    assert engine.serve(passages(2000, 10)).claim is not None
    assert not engine.gate.wants(tokens=100, sequences=1)


def test_a_least_gain_is_respected() -> None:
    engine = SyntheticEngine(cpu, settings={"min_gain_us": 1e9})
    serve_all(engine, 1)
    assert engine.serve(passages(6000, 1)).reason is DeclineReason.DOES_NOT_PAY


@pytest.mark.parametrize(("formula", "probed"), [(cpu, True), (with_dear_steps, False)])
def test_a_probe_is_made_where_its_step_pays_too(formula: Formula, probed: bool) -> None:
    engine = SyntheticEngine(formula)
    serve_all(engine, 4)
    engine.probe_layers = 28
    claim = engine.serve(passages(8000, 4)).claim
    assert claim is not None
    assert (claim.probing is not None) == probed


def test_a_probe_in_the_step_of_its_rows_makes_one_step_of_both() -> None:
    engine, plan = SyntheticEngine(cpu), passages(8000, 4)
    engine.probe_layers = 28
    claim = engine.claim_for(plan, 0)
    assert isinstance(claim, Claim)
    apart = claim_steps(claim, plan.prompt_tokens, step_tokens=8192)
    together = claim_steps(claim, plan.prompt_tokens, step_tokens=8192, probes_apart=False)
    assert (len(apart), len(together)) == (2, 1)
    assert together[0].tokens == apart[0].tokens + apart[1].tokens
    assert together[0].sequences == apart[0].sequences + apart[1].sequences
    assert (together[0].moved, together[0].corrected) == (apart[0].moved, apart[1].corrected)
    assert together[0].kind not in {apart[0].kind, apart[1].kind}


def test_where_a_step_holds_few_rows_a_probe_chooses_longer_ones_and_others_take_more_steps() -> None:
    engine, plan = SyntheticEngine(cpu), passages(8000, 4)
    unprobed = engine.claim_for(plan, 0)
    engine.probe_layers = 28
    claim = engine.claim_for(plan, 0)
    assert isinstance(claim, Claim)
    assert isinstance(unprobed, Claim)
    many, few = (claim_steps(claim, plan.prompt_tokens, 8192, step_rows=rows)[1] for rows in (None, 63))
    assert 48 < few.sequences <= 64, "rows, and the rest of the prompt"
    assert many.sequences > 2 * few.sequences
    assert many.tokens == few.tokens
    over_steps = claim_steps(unprobed, plan.prompt_tokens, 8192, step_rows=2)
    assert [step.sequences for step in over_steps] == [2] * (len(unprobed.rows) // 2) + [1]
