"""Which time is a step's own, for engines that wait for each and for engines that overlap them."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from semblend_core.costs import Part, Step, StepClock


class Timed:
    def __init__(self) -> None:
        self.now = 100.0
        self.took: list[tuple[object, float]] = []
        self.overlapped: list[bool] = []
        self.clock = StepClock(self._note, lambda: self.now)

    def _note(self, step: Step, took: float) -> None:
        self.took.append((step.made_for, round(took)))
        self.overlapped.append(step.overlapped)

    def schedule(self, step: object, parts: list[Part] | None = None) -> None:
        self.clock.begin()
        self.clock.scheduled(step, parts or [Part(0, 100)], {}, 0)

    def wait(self, microseconds: float) -> None:
        self.now += microseconds / 1e6


def test_a_step_takes_from_its_scheduling_to_its_results() -> None:
    timed = Timed()
    for step, took in ((object(), 300), (object(), 500)):
        timed.schedule(step)
        timed.wait(took)
        timed.clock.finished(step)
        timed.wait(10_000)  # Nobody asks for anything.
    assert [took for _, took in timed.took] == [300, 500]
    assert not any(timed.overlapped)


def test_of_two_that_overlap_the_second_takes_from_the_results_of_the_first() -> None:
    timed, first, second = Timed(), object(), object()
    timed.schedule(first)
    timed.wait(100)
    timed.schedule(second)
    timed.wait(200)
    timed.clock.finished(first)
    timed.wait(700)
    timed.clock.finished(second)
    assert timed.took == [(first, 300), (second, 700)]
    assert timed.overlapped == [False, True]


def test_an_engine_that_asks_for_results_late_does_not_charge_a_step_for_the_next_ones_launch() -> None:
    timed, first, second, third = Timed(), object(), object(), object()
    timed.schedule(first)
    timed.wait(300)
    first_ended = timed.now
    timed.schedule(second)
    timed.wait(700)  # To make and launch the second.
    timed.clock.finished(first, first_ended)
    timed.wait(100)
    second_ended = timed.now
    timed.schedule(third)
    timed.wait(50)
    timed.clock.finished(second, second_ended)
    assert timed.took == [(first, 300), (second, 800)]
    assert timed.overlapped == [False, False], "both ends are known"


def test_what_is_done_with_results_that_are_asked_for_at_once_is_part_of_their_step() -> None:
    """As between a probe and the rows that it chooses: nothing is computed meanwhile."""
    timed, probe, rows = Timed(), object(), object()
    for step in (probe, rows):
        timed.schedule(step)
        timed.wait(300)
        ended = timed.now
        timed.wait(80)
        timed.clock.finished(step, ended)
    assert timed.took == [(probe, 380), (rows, 380)]


def test_behind_a_step_whose_end_is_not_known_one_may_seem_too_short() -> None:
    timed, first, second, third = Timed(), object(), object(), object()
    timed.schedule(first)
    timed.wait(100)
    timed.schedule(second)
    timed.wait(300)
    timed.clock.finished(first)
    timed.wait(100)
    timed.schedule(third)
    timed.wait(100)
    timed.clock.finished(second, timed.now - 150e-6)
    timed.wait(100)
    timed.clock.finished(third)
    assert timed.took == [(first, 400), (second, 50), (third, 200)]
    assert timed.overlapped == [False, True, False]


def test_of_steps_some_of_whose_ends_are_known_none_is_lost_and_no_time_is_counted_twice() -> None:
    timed, drawn = Timed(), random.Random(5)
    began, steps = timed.now, [object() for _ in range(300)]
    ends: list[float] = []
    timed.schedule(steps[0])
    for earlier, later in pairwise(steps):
        timed.wait(drawn.uniform(1, 500))
        ends.append(timed.now)
        timed.schedule(later)
        timed.wait(drawn.uniform(1, 500))
        timed.clock.finished(earlier, ends[-1] if drawn.random() < 0.7 else None)
    assert len(timed.took) == len(steps) - 1
    assert sum(took for _, took in timed.took) <= (timed.now - began) * 1e6 + len(steps)


def test_what_an_engine_plans_before_it_asks_is_no_part_of_the_step() -> None:
    """It waits for the results before it launches the next one, and has looked up prompts for that one already."""
    timed, step = Timed(), object()
    timed.schedule(step)
    timed.wait(300)
    ended = timed.now
    timed.clock.begin()
    timed.wait(200)
    timed.clock.finished(step, ended)
    assert timed.took == [(step, 300)]


@pytest.mark.parametrize("wrong", [-500e-6, 500e-6])
def test_an_end_that_cannot_be_is_not_believed(wrong: float) -> None:
    """As where a device's clock was compared badly with the host's."""
    timed, step = Timed(), object()
    timed.schedule(step)
    timed.wait(200)
    timed.schedule(object())
    timed.wait(100)
    timed.clock.finished(step, timed.now + wrong)
    assert timed.took == [(step, 300)]


def test_results_of_a_step_that_computed_nothing_bound_no_other() -> None:
    """vLLM asks for them when it has begun the next request."""
    timed, empty, step = Timed(), object(), object()
    timed.schedule(step)
    timed.wait(200)
    timed.clock.finished(empty)
    timed.wait(100)
    timed.clock.finished(step)
    assert timed.took == [(step, 300)]


def test_a_lookup_is_no_part_of_its_step() -> None:
    timed, step = Timed(), object()
    timed.clock.begin()
    with timed.clock.apart():
        timed.wait(250)
    timed.clock.scheduled(step, [Part(0, 100)], {}, 0)
    timed.wait(300)
    timed.clock.finished(step)
    assert timed.took == [(step, 300)]


def test_steps_that_only_decode_are_looked_at_rarely_and_still_bound_the_next_one() -> None:
    timed, decode, prefill = Timed(), object(), object()
    wanted = sum(timed.clock.wants(tokens=4, sequences=4) for _ in range(1000))
    assert 8 < wanted < 50
    assert timed.clock.wants(tokens=5, sequences=4)
    assert not timed.clock.wants(tokens=0, sequences=0)
    timed.clock.begin()
    timed.clock.scheduled(decode, None, {}, 0)
    timed.schedule(prefill)
    timed.wait(400)
    timed.clock.finished(decode)
    timed.wait(900)
    timed.clock.finished(prefill)
    assert timed.took == [(prefill, 900)]


def test_a_clock_that_is_set_back_tells_nothing() -> None:
    timed, first, second = Timed(), object(), object()
    timed.schedule(first)
    timed.wait(-5_000)
    timed.clock.finished(first)
    timed.schedule(second)
    timed.wait(300)
    timed.clock.finished(second)
    assert timed.took == [(second, 300)]


def test_steps_whose_results_never_come_are_forgotten() -> None:
    timed = Timed()
    steps = [object() for _ in range(1000)]
    for step in steps:
        timed.schedule(step)
    timed.clock.finished(steps[0])
    timed.clock.finished(steps[-1])
    assert [step for step, _ in timed.took] == [steps[-1]]


def test_the_shape_of_a_step_is_the_sum_over_its_sequences() -> None:
    seen: list[Step] = []
    clock = StepClock(lambda step, took: seen.append(step))
    clock.begin()
    parts = [
        Part(1000, 1, "decoding", decodes=True),
        Part(0, 64, "a", is_row=True),
        Part(500, 1, "a", is_row=True),
        Part(640, 60, "a"),
    ]
    clock.scheduled(clock, parts, {"a": 600}, 600)
    clock.finished(clock)
    shape = seen[0].shape
    assert shape is not None
    assert (shape.tokens, shape.context, shape.sequences) == (126, 2140, 3)
    assert shape.attention == 1000.5 + 64 * 32 + 500.5 + 60 * 670
    assert (shape.reuses, shape.moved, shape.corrected) == (True, 600, 600)
    assert list(seen[0].loaded) == ["a"]
