"""The controller: what each kind of plan spends, so that its answers agree with cold ones as well as they shall."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend_core.quality import STEPS, QualityController
from semblend_core.quality.controller import FIRST_LESS_AFTER, FIRST_TRIAL_AFTER, MOST_TRIALS

TARGET = 0.9
KIND = "several_places"


@dataclass
class Traffic:
    """Requests of one kind, each compared. ``agreement``: the mean at each step, which single answers stray from."""

    agreement: tuple[float, float, float]
    controller: QualityController = field(default_factory=lambda: QualityController(TARGET))
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    served: list[float | None] = field(default_factory=list)
    """What was spent on each request; None: it was declined."""

    def go(self, requests: int) -> Traffic:
        for _ in range(requests):
            spending = self.controller.ask(KIND)
            self.served.append(spending)
            if spending is not None:
                mean = self.agreement[STEPS.index(spending)]
                own = self.rng.beta(20 * mean, 20 * (1 - mean))
                self.controller.compared(KIND, spending, self.rng.binomial(64, own) / 64)
        return self

    def mean_agreement(self, last: int) -> float:
        """Of what was served; what was declined is cold."""
        each = [1.0 if spent is None else self.agreement[STEPS.index(spent)] for spent in self.served[-last:]]
        return sum(each) / len(each)

    @property
    def changes(self) -> int:
        return sum(a != b for a, b in zip(self.served, self.served[1:], strict=False))


def test_what_agrees_well_enough_is_left_alone() -> None:
    traffic = Traffic((0.95, 0.97, 0.99)).go(5000)
    assert set(traffic.served) == {1.0}


def test_a_lack_is_made_up_for_by_spending_more() -> None:
    traffic = Traffic((0.8, 0.95, 0.99)).go(200)
    assert traffic.served[-1] == 2.0
    assert traffic.served.count(1.0) < 40, "it is noticed soon"
    assert None not in traffic.served


def test_where_no_budget_is_enough_the_kind_is_declined() -> None:
    traffic = Traffic((0.5, 0.6, 0.7)).go(200)
    assert traffic.served[-1] is None
    assert sum(spent is not None for spent in traffic.served) < 60
    assert traffic.controller.is_declined(KIND)


@pytest.mark.parametrize(
    "agreement", [(0.85, 0.95, 0.98), (0.8, 0.85, 0.95), (0.6, 0.65, 0.7), (0.8, 0.82, 0.85)], ids=str
)
def test_the_target_is_held_in_the_long_run(agreement: tuple[float, float, float]) -> None:
    traffic = Traffic(agreement).go(6000)
    assert traffic.mean_agreement(5000) >= TARGET


def test_it_does_not_go_to_and_fro() -> None:
    """A step that fell short is tried again, each time after twice as many comparisons."""
    traffic = Traffic((0.85, 0.97, 0.99)).go(10_000)
    assert traffic.changes <= 20
    assert traffic.served[-5000:].count(1.0) < 150


def test_less_is_spent_again_when_things_get_better() -> None:
    traffic = Traffic((0.6, 0.7, 0.95)).go(100)
    assert traffic.served[-1] == 4.0
    traffic.agreement = (0.97, 0.98, 0.99)
    traffic.go(10 * FIRST_LESS_AFTER)
    assert traffic.served[-1] == 1.0


def test_what_was_declined_is_tried_again_and_served_when_it_agrees() -> None:
    traffic = Traffic((0.5, 0.5, 0.5)).go(200)
    assert traffic.served[-1] is None
    traffic.agreement = (0.98, 0.98, 0.98)
    traffic.go(FIRST_TRIAL_AFTER + MOST_TRIALS)
    assert not traffic.controller.is_declined(KIND)
    assert traffic.served[-1] is not None


@pytest.mark.parametrize(("target", "agreement"), [(0.95, 0.98), (0.99, 0.9999)])
def test_a_high_target_takes_several_trials(target: float, agreement: float) -> None:
    traffic = Traffic((0.5, 0.5, 0.5), QualityController(target)).go(200)
    assert traffic.served[-1] is None
    traffic.agreement = (agreement,) * 3
    traffic.go(20 * (FIRST_TRIAL_AFTER + MOST_TRIALS))
    assert not traffic.controller.is_declined(KIND)


def test_trials_that_an_engine_has_little_room_to_compare_lead_to_something_too() -> None:
    controller = QualityController(TARGET)
    while not controller.is_declined(KIND):
        controller.compared(KIND, controller.spending(KIND), 0.0)
    for number in range(8 * FIRST_TRIAL_AFTER):
        if controller.ask(KIND) is not None and number % 4 == 0:
            controller.compared(KIND, STEPS[-1], 1.0)
    assert not controller.is_declined(KIND)


def test_answers_of_trials_are_worth_comparing_when_no_more_are_begun() -> None:
    controller = QualityController(TARGET)
    while not controller.is_declined(KIND):
        controller.compared(KIND, controller.spending(KIND), 0.0)
    assert not controller.is_tried(KIND)
    while controller.ask(KIND) is None:
        pass
    while controller.ask(KIND) is not None:  # All of them at once, before any has ended.
        pass
    assert controller.is_tried(KIND)
    while controller.is_tried(KIND):
        controller.compared(KIND, STEPS[-1], 0.0)
    assert controller.is_declined(KIND)


def test_trials_are_few_and_become_rare() -> None:
    traffic = Traffic((0.5, 0.5, 0.5)).go(100)
    traffic.go(31 * FIRST_TRIAL_AFTER)
    served = [number for number, spent in enumerate(traffic.served[100:]) if spent is not None]
    firsts = [at for before, at in zip([-FIRST_TRIAL_AFTER, *served], served, strict=False) if at - before > 100]
    assert len(firsts) == 5, "after 1, 2, 4, 8 and 16 times as many requests"
    assert len(served) < 5 * MOST_TRIALS


def test_trials_that_nobody_could_compare_end_by_themselves() -> None:
    controller = QualityController(TARGET)
    while not controller.is_declined(KIND):
        controller.compared(KIND, controller.spending(KIND), 0.0)
    asked = [controller.ask(KIND) for _ in range(8 * FIRST_TRIAL_AFTER)]
    assert sum(spent is not None for spent in asked) <= 3 * MOST_TRIALS


def test_kinds_are_judged_apart() -> None:
    controller = QualityController(TARGET)
    for _ in range(100):
        controller.compared("bad", controller.spending("bad"), 0.2)
        controller.compared("good", 1.0, 1.0)
    assert controller.ask("bad") is None
    assert controller.ask("good") == 1.0


def test_what_was_computed_with_too_little_is_no_longer_trusted() -> None:
    controller = QualityController(TARGET)
    assert controller.trusts(KIND, 1.0)
    while controller.spending(KIND) == 1.0:
        controller.compared(KIND, 1.0, 0.5)
    assert not controller.trusts(KIND, 1.0)
    assert controller.trusts(KIND, 2.0)
    while not controller.is_declined(KIND):
        controller.compared(KIND, controller.spending(KIND), 0.5)
    assert not any(controller.trusts(KIND, spending) for spending in STEPS)


def test_answers_of_another_step_say_nothing_of_this_one() -> None:
    controller = QualityController(TARGET)
    while controller.spending(KIND) == 1.0:
        controller.compared(KIND, 1.0, 0.5)
    for _ in range(500):  # Requests that were served before, and compared after.
        assert not controller.compared(KIND, 1.0, 0.5)
    assert controller.spending(KIND) == 2.0


def test_without_a_target_nothing_is_done() -> None:
    controller = QualityController(0.0)
    for _ in range(1000):
        assert not controller.compared(KIND, 1.0, 0.0)
    assert controller.ask(KIND) == 1.0


def test_another_model_starts_over() -> None:
    controller = QualityController(TARGET)
    while not controller.is_declined(KIND):
        controller.compared(KIND, controller.spending(KIND), 0.0)
    controller.start_over()
    assert controller.ask(KIND) == 1.0


@given(target=st.floats(0, 1), agreements=st.lists(st.floats(0, 1), max_size=300))
def test_whatever_comes_it_moves_by_one_step_at_a_time_and_only_for_a_reason(
    target: float, agreements: list[float]
) -> None:
    controller = QualityController(target)
    for agreement in agreements:
        before, declined = controller.spending(KIND), controller.is_declined(KIND)
        assert before in STEPS
        changed = controller.compared(KIND, before, agreement)
        after = controller.spending(KIND)
        assert abs(STEPS.index(after) - STEPS.index(before)) <= 1
        if not changed:
            assert (after, controller.is_declined(KIND)) == (before, declined)
        if after > before or (controller.is_declined(KIND) and not declined):
            assert agreement < target, "a good answer raises nothing"
        if after < before:
            assert agreement > target, "a bad one lowers nothing"


@given(target=st.floats(0, 1), over=st.lists(st.floats(0, 1), max_size=300))
def test_nothing_is_done_while_every_answer_agrees_well_enough(target: float, over: list[float]) -> None:
    controller = QualityController(target)
    for share in over:
        assert not controller.compared(KIND, 1.0, min(1.0, target + share * (1 - target)))
