"""The gate learns what an engine's steps take, from nothing and without a setting."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest

from semblend_core.contract import DeclineReason
from semblend_core.costs import Part, StepShape, StepTimes
from semblend_core.costs.step_times import UNSEEN
from semblend_core.costs.trials import FIRST_TRIAL_AFTER
from semblend_core.serving import Claim
from semblend_core.settings import QualityTier
from semblend_core.telemetry import CostsCompared

from .engines import (
    ENGINES,
    LENGTHS,
    NAMESPACE,
    SLOW_TO_BEGIN,
    Formula,
    Heard,
    StepWork,
    SyntheticEngine,
    cold_work,
    cpu,
    large_model_on_gpu,
    passages,
    serve_all,
    small_model_on_gpu,
    with_dear_rows,
    with_slow_prefills,
)


@pytest.mark.parametrize("formula", ENGINES.values(), ids=ENGINES)
def test_what_a_donor_takes_to_compute_is_known_once_prompts_were_timed(formula: Formula) -> None:
    engine = SyntheticEngine(formula)
    assert engine.gate.prefill_ms(4000) == 0.0, "not known"
    for length in LENGTHS * 3:
        engine.serve_cold(length)
    for length in (6000, 16_000):
        took = engine.takes(cold_work(0, length)) / 1e3
        assert took / 2 < engine.gate.prefill_ms(length) < 1.5 * took
    assert SyntheticEngine(formula, settings={"cost_gate": False}).gate.prefill_ms(4000) == 0.0


def test_what_a_donor_takes_to_compute_is_never_what_a_slow_first_step_made_of_it() -> None:
    """Donors are priced while nobody asks for anything else, as in an engine that has no plans yet."""
    times = StepTimes()
    for number in range(40):
        tokens = (512, 2048, 1024, 4096)[number % 4]
        times.observe(StepShape.of([Part(0, tokens, "prompt")]), (5000 + 20 * tokens) * (1 if number else 20))
        if number >= 15:
            price, fitted = times.prefill(1000), deepcopy(times)
            fitted.cost("token")
            assert fitted.prefill(1000) / 2 <= price <= 2 * fitted.prefill(1000), number


@pytest.mark.parametrize("formula", ENGINES.values(), ids=ENGINES)
def test_it_learns_from_nothing_within_twenty_requests(formula: Formula) -> None:
    engine = SyntheticEngine(formula)
    for _ in range(10):
        engine.serve_cold(6000)
        engine.serve(passages(6000, 1))
    assert engine.serve(passages(6000, 1)).claim is not None


def test_before_it_has_seen_prompts_computed_it_declines_and_says_so() -> None:
    engine = SyntheticEngine(cpu)
    assert engine.serve(passages(6000, 1)).reason is DeclineReason.COSTS_UNKNOWN


def test_many_answers_at_once_are_no_prompts() -> None:
    engine = SyntheticEngine(cpu)
    for _ in range(4):
        engine.run("", StepWork([Part(3000, 1, decodes=True)] * 200))
    assert engine.serve(passages(6000, 1)).reason is DeclineReason.COSTS_UNKNOWN


@pytest.mark.parametrize("tier", ["fast", "balanced"])
@pytest.mark.parametrize("seen", [(2000,) * 4, (8000,) * 4, (32_000,) * 4, (2000, 8000, 32_000, 16_000)], ids=str)
@pytest.mark.parametrize("formula", SLOW_TO_BEGIN.values(), ids=SLOW_TO_BEGIN)
def test_a_short_prefill_is_not_taken_for_as_fast_as_a_decode_step(
    formula: Formula, seen: tuple[int, ...], tier: QualityTier
) -> None:
    """Steps that decode take a tenth of the shortest prefill, and no short prefill was seen."""
    engine = SyntheticEngine(formula, tier)
    for length in seen:
        engine.serve_cold(length)
    short = passages(2000, 1)
    assert engine.whole(short) > 1.1
    assert engine.serve(short).reason is DeclineReason.DOES_NOT_PAY


def test_the_last_token_of_a_prompt_alone_is_a_prefill() -> None:
    engine = SyntheticEngine(with_slow_prefills)
    for length in (2000, 8000, 32_000, 1, 1, 1):
        engine.serve_cold(length)
    assert 40_000 < engine.gate.times.predict([cold_work(4000, 4001)[0].shape]) < 60_000
    assert engine.gate.times.predict([StepShape.of([Part(4000, 1, decodes=True)])]) < 6000
    assert engine.serve(passages(2000, 1)).reason is DeclineReason.DOES_NOT_PAY


def test_steps_of_a_kind_that_nobody_has_seen_are_in_doubt() -> None:
    engine = SyntheticEngine(cpu)
    serve_all(engine, 4)
    times = engine.gate.times
    rows = [Part(1000 * n, 24, is_row=True) for n in range(30)]
    unseen = StepShape.of([*rows, Part(30_000, 400)], moved=29_000)
    expected = times.predict([unseen])
    assert times.doubt([unseen], []) >= UNSEEN * expected
    for _ in range(4):
        times.observe(unseen, 2 * expected)
    assert times.predict([unseen]) > 1.6 * expected, "what they take is believed"
    assert times.doubt([unseen], []) < UNSEEN * expected


@pytest.mark.parametrize("formula", ENGINES.values(), ids=ENGINES)
def test_steps_that_something_else_slowed_down_mislead_it_for_a_while_at_most(formula: Formula) -> None:
    engine = SyntheticEngine(formula, outliers=0.05)
    for (length, count), served in serve_all(engine, 12).items():
        late = [each.by_cold for each in served[6:]]
        assert np.median(late) <= 1.0
        if engine.whole(passages(length, count)) < 0.6:
            assert np.median(late) < 0.7, (length, count)


@pytest.mark.parametrize("formula", ENGINES.values(), ids=ENGINES)
def test_on_a_busy_machine_the_first_predictions_are_of_the_right_size(formula: Formula) -> None:
    heard = Heard()
    engine = SyntheticEngine(formula, noise=0.7, audit=heard)
    for _ in range(5):
        engine.serve_cold(1050)
        engine.serve(passages(1050, 1))
    cold = engine.takes(cold_work(0, 1050))
    assert all(0.5 < event.predicted_cold_us / cold < 3 for event in heard.events)


@pytest.mark.parametrize("formula", ENGINES.values(), ids=ENGINES)
def test_results_that_come_right_behind_others_teach_nothing(formula: Formula) -> None:
    """Two steps are under way, and nobody asks for the first one's results until the second one's are there too."""
    plan = passages(6000, 10)
    served = []
    for takes_no_time in (False, True):
        engine = SyntheticEngine(formula)
        serve_all(engine, 3)
        if takes_no_time:
            engine.results_at_once(cold_work(0, 6000)[0], cold_work(0, 4096)[0])
        served.append([engine.serve(plan).by_cold for _ in range(30)])
    assert np.mean(served[1]) <= np.mean(served[0]) + 0.02


@pytest.mark.parametrize("count", [1, 10])
@pytest.mark.parametrize("formula", ENGINES.values(), ids=ENGINES)
def test_what_reuse_took_in_a_bad_moment_is_not_believed_for_ever(formula: Formula, count: int) -> None:
    engine, plan = SyntheticEngine(formula), passages(6000, count)
    serve_all(engine, 3)
    before = np.mean([engine.serve(plan).by_cold for _ in range(40)])
    engine.formula = lambda step: formula(step) * (6 if step.reuses else 1)
    for _ in range(40):
        engine.serve(plan)
    engine.formula = formula
    for _ in range(300):
        engine.serve(plan)
    assert np.mean([engine.serve(plan).by_cold for _ in range(40)]) < before + 0.05


@pytest.mark.parametrize("slower", [3, 10])
def test_what_the_first_prompts_took_is_not_believed_for_ever(slower: int) -> None:
    """They waited for compilations, and since then every prompt reuses."""
    engine = SyntheticEngine(lambda step: slower * with_dear_rows(step))
    for length in (900, 6000, 5000, 2000):
        engine.serve_cold(length)
    engine.formula = with_dear_rows
    served = [engine.serve(passages(6000, 10)).by_cold for _ in range(500)]
    assert max(served[:100]) > 1.3, "no test of anything"
    assert np.mean(served[-100:]) < 1.03


def test_a_first_prompt_that_waited_for_compilations_is_believed_until_the_second() -> None:
    """The first takes two seconds more, and what is reused later takes half as long again as a prefill."""

    def slow_loads(step: StepShape) -> float:
        return 5000 + 8.0 * step.tokens + 30_000 * step.reuses

    engine, plan = SyntheticEngine(lambda step: 2e6 + slow_loads(step), "fast"), passages(2400, 1)
    engine.serve_cold(2400)
    engine.formula = slow_loads
    for _ in range(2):
        engine.serve_cold(2400)
    assert engine.whole(plan) > 1.3
    served = [engine.serve(plan).by_cold for _ in range(40)]
    assert sum(by_cold > 1.03 for by_cold in served) <= 4, "more than rare trials"


@pytest.mark.parametrize("waits", [(7.5e6, 0.0, 0.14e6), (7.5e6, 3e6, 1e6), (3e5, 3e5, 3e5), (1e6,) * 10])
def test_compilations_of_the_first_prompts_are_not_believed_of_all_of_their_size(waits: tuple[float, ...]) -> None:
    """Prompts of that size all reuse then, and it takes longer than to compute them."""

    def slow_rows(step: StepShape) -> float:
        return 4000 + 6.0 * step.tokens + 20_000 * step.reuses

    engine = SyntheticEngine(slow_rows)
    for number, waited in enumerate(waits):
        engine.formula = lambda step, waited=waited: slow_rows(step) + waited  # type: ignore[misc]
        engine.serve_cold(2035 - number)
    engine.formula = slow_rows
    for _ in range(4):
        engine.serve_cold(2048)  # By powers of two, of another size than those.
    served = [engine.serve(passages(2044, 10)).by_cold for _ in range(100)]
    assert sum(by_cold > 1.03 for by_cold in served[:40]) <= 8
    assert sum(by_cold > 1.03 for by_cold in served[40:]) <= 2, "more than rare trials"


@pytest.mark.parametrize(("formula", "tier"), [(large_model_on_gpu, "fast"), (cpu, "balanced")])
def test_where_no_short_prompt_was_seen_the_whole_plan_is_tried_all_the_same(
    formula: Formula, tier: QualityTier
) -> None:
    """Parts of it compute about as many tokens as the shortest prompt, so they alone do not seem to lose."""
    engine, plan = SyntheticEngine(formula, tier), passages(2000, 4)
    for length in (3000, 6000, 2000) * 6:
        engine.serve_cold(length)
    served = [engine.serve(plan).by_cold for _ in range(60)]
    assert np.mean(served[20:]) < 1.05 * engine.whole(plan) < 0.6


@pytest.mark.parametrize("times", [10.0, 0.1])
@pytest.mark.parametrize("formula", [small_model_on_gpu, large_model_on_gpu, cpu])
def test_what_pays_is_reused_again_soon_after_the_machine_became_slower_or_faster(
    formula: Formula, times: float
) -> None:
    engine, plan = SyntheticEngine(formula), passages(6000, 10 if formula is cpu else 1)
    for _ in range(40):
        engine.serve_cold(6000)
        engine.serve(plan)
        engine.serve_cold(2000)
    engine.formula = lambda step: times * formula(step)
    served = []
    for number in range(60):
        served.append(engine.serve(plan).by_cold)
        if number % 3 == 0:
            engine.serve_cold((2000, 6000, 16_000)[number // 3 % 3])
    assert np.mean(served[20:]) < 1.1 * engine.whole(plan)


def test_predictions_and_what_came_of_them_are_in_the_audit_stream() -> None:
    heard = Heard()
    engine = SyntheticEngine(small_model_on_gpu, "fast", audit=heard)
    served = [each for cell in serve_all(engine, 6).values() for each in cell]
    judged = [each for each in served if each.reason is not DeclineReason.COSTS_UNKNOWN]
    events = heard.events
    assert all(isinstance(event, CostsCompared) for event in events)
    assert len(events) == len(judged)
    assert {event.reason for event in events} <= {None, DeclineReason.DOES_NOT_PAY}
    assert all(event.reused == (event.reason is None) and event.alone for event in events)
    late = events[len(events) // 2 :]
    predicted = [event.predicted_reuse_us if event.reused else event.predicted_cold_us for event in late]
    measured = [event.measured_us for event in late]
    assert np.median(np.abs(np.divide(predicted, measured) - 1)) < 0.06


def test_one_that_is_never_computed_is_told_of_without_a_time() -> None:
    heard = Heard()
    engine = SyntheticEngine(cpu, audit=heard)
    for _ in range(4):
        engine.serve_cold(2000)
    engine.gate.choose("gone", NAMESPACE, passages(2000, 1), engine.claim_for)
    engine.gate.close()
    assert [(event.request_id, event.measured_us, event.reused) for event in heard.events] == [("gone", None, None)]


def test_what_cannot_be_tried_as_its_donors_are_gone_is_tried_with_others() -> None:
    heard = Heard()
    engine = SyntheticEngine(with_dear_rows, audit=heard)
    for _ in range(4):
        engine.serve_cold(6000)
    gate, plan, tries = engine.gate, passages(6000, 10), []
    for number in range(100):
        if isinstance(gate.choose(f"gone-{number}", NAMESPACE, plan, engine.claim_for), Claim):
            tries.append(number)
            gate.donors_gone(f"gone-{number}")
    assert len(tries) > 10, "in vain"
    served = [engine.serve(plan) for _ in range(FIRST_TRIAL_AFTER)]
    assert any(each.claim for each in served)
    gate.close()
    assert not any(event.trial for event in heard.events if event.request_id.startswith("gone"))
