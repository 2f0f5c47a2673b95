"""What does not seem to pay is tried rarely, and looked up rarely; what went well is tried again at once."""

from __future__ import annotations

from itertools import pairwise

from semblend_core.costs import Lookups, Trials
from semblend_core.costs.trials import FIRST_LOSING_TRIAL_AFTER, FIRST_TRIAL_AFTER, LOOK_ONE_IN, MOST_IN_VAIN

KIND = (1, 2, 3)


def tried(trials: Trials, requests: int, soon: bool) -> list[int]:
    return [number for number in range(1, requests + 1) if trials.is_due(KIND, soon=soon)]


def test_trials_become_rare() -> None:
    numbers = tried(Trials(), 1000, soon=True)
    assert numbers[0] == FIRST_TRIAL_AFTER
    assert len(numbers) < 10
    assert all(later - earlier >= earlier for earlier, later in pairwise(numbers))


def test_what_seems_to_lose_is_tried_later() -> None:
    assert tried(Trials(), 100, soon=False)[0] == FIRST_LOSING_TRIAL_AFTER > FIRST_TRIAL_AFTER


def test_each_kind_has_its_own() -> None:
    trials = Trials()
    assert tried(trials, 3, soon=True) == []
    assert not trials.is_due((9, 9), soon=True)
    assert trials.is_due(KIND, soon=True)


def test_after_one_that_went_well_the_next_is_a_trial_too() -> None:
    trials = Trials()
    tried(trials, FIRST_TRIAL_AFTER, soon=True)
    assert not trials.is_due(KIND, soon=False)
    trials.went_well(KIND)
    assert trials.is_due(KIND, soon=False)
    assert not trials.is_due(KIND, soon=False)


def test_lengths_whose_plans_do_not_pay_are_looked_up_rarely() -> None:
    lookups = Lookups()
    for _ in range(MOST_IN_VAIN):
        assert lookups.are_worth_it(2048)
        lookups.note(2048, paid=False)
    assert sum(lookups.are_worth_it(2048) for _ in range(10 * LOOK_ONE_IN)) == 10
    assert lookups.are_worth_it(6144), "another length is another matter"


def test_one_that_pays_ends_that() -> None:
    lookups = Lookups()
    for _ in range(MOST_IN_VAIN):
        lookups.note(2048, paid=False)
    lookups.note(2100, paid=True)
    assert all(lookups.are_worth_it(2048) for _ in range(5))
