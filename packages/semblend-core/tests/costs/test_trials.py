"""What does not seem to pay is tried rarely; what went well is tried again at once."""

from __future__ import annotations

from itertools import pairwise

import pytest

from semblend_core.costs import Trials
from semblend_core.costs.trials import (
    AFTER_ONE_THAT_WENT_WELL,
    FIRST_DEAR_TRIAL_AFTER,
    FIRST_LOSING_TRIAL_AFTER,
    FIRST_TRIAL_AFTER,
    MOST_AT_ONCE,
)

KIND = (1, 2, 3)


def tried(trials: Trials, requests: int, after: float = FIRST_TRIAL_AFTER) -> list[int]:
    return [number for number in range(1, requests + 1) if trials.is_due(KIND, after)]


def test_trials_become_rare() -> None:
    numbers = tried(Trials(), 1000)
    assert numbers[0] == FIRST_TRIAL_AFTER
    assert len(numbers) < 10
    assert all(later - earlier >= earlier for earlier, later in pairwise(numbers))


def test_what_seems_to_lose_is_tried_later() -> None:
    assert tried(Trials(), 100, FIRST_LOSING_TRIAL_AFTER)[0] == FIRST_LOSING_TRIAL_AFTER > FIRST_TRIAL_AFTER


@pytest.mark.parametrize("times", [2, 10, 50])
def test_however_dear_it_seems_it_is_tried_sometime(times: int) -> None:
    numbers = tried(Trials(), 5000 * times, FIRST_DEAR_TRIAL_AFTER * times)
    assert numbers[0] == FIRST_DEAR_TRIAL_AFTER * times
    assert sum(number <= 1024 * times for number in numbers) * times <= 1024 * times / 50, "it costs a few percent"
    assert numbers[-1] > 4000 * times, "and never ends"


def test_what_was_seen_anyway_need_not_be_tried() -> None:
    trials = Trials()
    for _ in range(50):
        assert tried(trials, FIRST_TRIAL_AFTER - 1) == []
        trials.not_needed(KIND)


def test_one_that_was_not_made_makes_the_next_no_rarer() -> None:
    trials = Trials()
    for _ in range(10):
        assert tried(trials, FIRST_TRIAL_AFTER) == [FIRST_TRIAL_AFTER]
        trials.was_not_made(KIND)
    assert tried(trials, FIRST_TRIAL_AFTER) == [FIRST_TRIAL_AFTER]
    assert tried(trials, 2 * FIRST_TRIAL_AFTER) == [2 * FIRST_TRIAL_AFTER], "that one was"


def test_each_kind_has_its_own() -> None:
    trials = Trials()
    assert tried(trials, 3) == []
    assert not trials.is_due((9, 9), FIRST_TRIAL_AFTER)
    assert trials.is_due(KIND, FIRST_TRIAL_AFTER)


def test_one_that_stands_for_many_brings_the_next_trial_nearer() -> None:
    trials = Trials()
    assert not trials.is_due(KIND, FIRST_LOSING_TRIAL_AFTER)
    assert trials.is_due(KIND, FIRST_LOSING_TRIAL_AFTER, requests=FIRST_LOSING_TRIAL_AFTER - 1)


def at_once(trials: Trials) -> int:
    """Trials that are made without waiting."""
    made = 0
    while trials.is_due(KIND, FIRST_LOSING_TRIAL_AFTER):
        made += 1
    return made


def test_after_one_that_went_well_the_next_ones_are_trials_too() -> None:
    trials = Trials()
    tried(trials, FIRST_TRIAL_AFTER)
    assert at_once(trials) == 0
    trials.went_well(KIND)
    assert at_once(trials) == AFTER_ONE_THAT_WENT_WELL


@pytest.mark.parametrize("most", [1, MOST_AT_ONCE])
def test_the_more_go_well_the_more_are_made_at_once(most: int) -> None:
    trials = Trials(most)
    for _ in range(100):
        trials.went_well(KIND)
        assert trials.is_due(KIND, FIRST_LOSING_TRIAL_AFTER)
    trials.went_well(KIND)
    assert at_once(trials) == most


def test_one_that_went_badly_ends_that() -> None:
    trials = Trials()
    trials.went_well(KIND)
    trials.went_well((9, 9))
    trials.went_badly(KIND)
    assert at_once(trials) == 0
    assert trials.is_due((9, 9), FIRST_LOSING_TRIAL_AFTER), "of its kind only"
