"""The gate learns what an engine's steps take and plans only what pays, from nothing and without a setting."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core.contract import DeclineReason, Plan, Span
from semblend_core.costs import Part, StepShape
from semblend_core.costs.step_times import UNSEEN
from semblend_core.serving.cost_gate import SMALL_LOSS
from semblend_core.settings import QualityTier
from semblend_core.telemetry import CostsCompared, NoAudit

from .engines import (
    ENGINES,
    NAMESPACE,
    SLOW_TO_BEGIN,
    Formula,
    StepWork,
    SyntheticEngine,
    cold_work,
    cpu,
    passages,
    small_model_on_gpu,
    with_dear_rows,
    with_dear_steps,
    with_slow_prefills,
)

LENGTHS = (2000, 6000, 16_000, 32_000)
COUNTS = (1, 4, 10)
EVERY = ENGINES | SLOW_TO_BEGIN


class Heard(NoAudit):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def emit(self, event: Any) -> None:
        self.events.append(event)


def serve_all(engine: SyntheticEngine, rounds: int, seed: int = 1) -> dict[tuple[int, int], list[Any]]:
    """Every length with every number of passages, a cold prompt between any two."""
    random = np.random.default_rng(seed)
    served: dict[tuple[int, int], list[Any]] = {}
    for _ in range(rounds):
        for length in LENGTHS:
            for count in COUNTS:
                prompt = length + int(random.integers(-100, 100))
                engine.serve_cold(prompt)
                served.setdefault((length, count), []).append(engine.serve(passages(prompt, count)))
    return served


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


def test_ten_passages_wait_until_fewer_have_shown_what_a_row_takes() -> None:
    engine = SyntheticEngine(with_dear_rows)
    for _ in range(4):
        engine.serve_cold(6000)
    assert engine.serve(passages(6000, 10)).reason is DeclineReason.DOES_NOT_PAY


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


@pytest.mark.parametrize("tier", ["fast", "balanced"])
@pytest.mark.parametrize("formula", SLOW_TO_BEGIN.values(), ids=SLOW_TO_BEGIN)
def test_a_long_plan_is_taken_at_once_although_no_short_prefill_was_seen(formula: Formula, tier: QualityTier) -> None:
    engine = SyntheticEngine(formula, tier)
    for length in (2000, 8000, 32_000, 16_000):
        engine.serve_cold(length)
    served = engine.serve(passages(32_000, 1))
    assert served.claim is not None
    assert served.by_cold < 0.3


def test_the_last_token_of_a_prompt_alone_is_a_prefill() -> None:
    engine = SyntheticEngine(with_slow_prefills)
    for length in (2000, 8000, 32_000, 1, 1, 1):
        engine.serve_cold(length)
    assert 40_000 < engine.gate.times.predict([cold_work(4000, 4001)[0].shape]) < 60_000
    assert engine.gate.times.predict([StepShape.of([Part(4000, 1, decodes=True)])]) < 6000
    assert engine.serve(passages(2000, 1)).reason is DeclineReason.DOES_NOT_PAY


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


# --- Lookups take time too -------------------------------------------------------------------------------------------


def look_up(engine: SyntheticEngine, prompt: int, seconds: float) -> bool:
    """For a prompt of which nothing is known."""
    looked_up = engine.gate.may_pay(prompt)
    if looked_up:
        engine.now += seconds
        engine.gate.found_nothing(prompt)
    engine.serve_cold(prompt)
    return looked_up


@pytest.mark.parametrize(("share", "spared"), [(0.2, True), (0.01, False)])
def test_lookups_that_find_nothing_are_made_rarely_where_they_take_long(share: float, spared: bool) -> None:
    engine = SyntheticEngine(small_model_on_gpu)
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


def test_what_is_looked_up_rarely_is_tried_as_often_as_if_it_were_looked_up_always() -> None:
    engine, tried, looked_up = SyntheticEngine(lambda step: cpu(step) + 2e6 * step.reuses, "fast"), 0, 0
    for _ in range(400):
        if engine.gate.may_pay(2000):
            looked_up += 1
            tried += engine.serve(passages(2000, 1)).claim is not None
        else:
            engine.serve_cold(2000)
    assert looked_up < 80
    assert 5 <= tried <= 7


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


# --- Kept between processes ------------------------------------------------------------------------------------------


def kept_in(folder: Path, model: str = "m") -> SyntheticEngine:
    return SyntheticEngine(cpu, settings={"cost_dir": str(folder)}, identity={"engine": "synthetic", "model": model})


def test_the_next_process_begins_with_what_the_last_one_learned(tmp_path: Path) -> None:
    first = kept_in(tmp_path)
    serve_all(first, 3)
    first.gate.close()
    assert kept_in(tmp_path).serve(passages(6000, 1)).claim is not None
    assert kept_in(tmp_path, "another").serve(passages(6000, 1)).reason is DeclineReason.COSTS_UNKNOWN


def test_what_was_kept_is_believed_less_than_what_is_measured(tmp_path: Path) -> None:
    first = kept_in(tmp_path)
    serve_all(first, 3)
    first.gate.close()
    second = kept_in(tmp_path)
    second.formula = small_model_on_gpu
    served = serve_all(second, 12)
    assert all(np.median([each.by_cold for each in cell[6:]]) <= 1.03 for cell in served.values())


def _with_times(text: str, change: Callable[[dict[str, Any]], Any]) -> str:
    kept = json.loads(text)
    change(kept["times"])
    return json.dumps(kept)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"m"', '"other"'),
        lambda text: json.dumps({**json.loads(text), "times": {"features": []}}),
        lambda text: text.replace('"least_step": ', '"least_step": -'),
        lambda text: text.replace("semblend.costs.v2", "semblend.costs.v1"),
        lambda text: _with_times(text, lambda times: times["known"][1].__setitem__(1, -1e-3)),
        lambda text: _with_times(text, lambda times: times["known"][1].__setitem__(2, 1e9)),
        lambda text: _with_times(text, lambda times: times["seen"].__setitem__(4, 1e300)),
        lambda text: _with_times(text, lambda times: times.update(token=1e-300)),
        lambda text: _with_times(text, lambda times: times.update(prefills=-1000)),
    ],
    ids=[
        "cut off",
        "something else",
        "of another model",
        "of other features",
        "no costs",
        "of another release",
        "no squares",
        "not symmetric",
        "too much seen",
        "too fast",
        "fewer than none",
    ],
)
def test_a_file_that_is_not_right_is_left_alone_with_a_warning(
    tmp_path: Path, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first = kept_in(tmp_path)
    serve_all(first, 1)
    first.gate.close()
    (path,) = tmp_path.iterdir()
    path.write_text(damage(path.read_text()))
    second = kept_in(tmp_path)
    assert "are not used" in caplog.text
    assert second.serve(passages(6000, 1)).reason is DeclineReason.COSTS_UNKNOWN


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    engine = kept_in(tmp_path / "file" / "folder")
    serve_all(engine, 1)
    engine.gate.close()
    assert "is not kept" in caplog.text


def test_the_default_folder_is_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine = SyntheticEngine(cpu, settings={"cost_dir": ""}, identity={"engine": "synthetic"})
    serve_all(engine, 1)
    engine.gate.close()
    assert len(list((tmp_path / "semblend" / "costs").iterdir())) == 1


# --- Overruled -------------------------------------------------------------------------------------------------------


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
