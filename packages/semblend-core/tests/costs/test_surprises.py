"""Plans that took longer than forecast are expected to do so again, for a while."""

from __future__ import annotations

from semblend_core.costs import Part, StepShape, StepTimes
from semblend_core.costs.surprises import BELIEVED_FOR, Surprises


def times() -> StepTimes:
    known = StepTimes()
    for tokens in (500, 1000, 2000, 4000, 8000) * 4:
        known.observe(StepShape.of([Part(0, tokens)]), 1000 + 10 * tokens, overlapped=False)
    return known


PLAN = [StepShape.of([Part(0, 1000)])]
OTHER = [StepShape.of([Part(0, 8000)])]
EXPECTED = 11_000


def factor(surprises: Surprises, plan: list[StepShape] = PLAN) -> float:
    surprises.begin_judgement()
    return surprises.factor(plan)


def test_one_may_be_an_accident_and_two_are_none() -> None:
    surprises = Surprises(times())
    surprises.note(PLAN, 3 * EXPECTED)
    assert factor(surprises) == 1.0
    surprises.note(PLAN, 2 * EXPECTED)
    assert 1.9 < factor(surprises) < 2.1, "the lesser of two"
    assert factor(surprises, OTHER) == 1.0


def test_one_that_took_as_long_as_forecast_ends_it() -> None:
    surprises = Surprises(times())
    for _ in range(3):
        surprises.note(PLAN, 3 * EXPECTED)
    surprises.note(PLAN, EXPECTED)
    assert factor(surprises) == 1.0


def test_what_was_faster_than_forecast_is_no_reason_to_expect_it() -> None:
    surprises = Surprises(times())
    for _ in range(3):
        surprises.note(PLAN, EXPECTED / 3)
    assert factor(surprises) == 1.0


def test_what_nobody_sees_again_is_doubted_after_a_while_and_each_time_later() -> None:
    """Where a cold prefill is made instead, nothing tells that a bad moment is over."""
    surprises = Surprises(times())
    for _ in range(3):
        surprises.note(PLAN, 3 * EXPECTED)

    def believed() -> int:
        count = 0
        while factor(surprises) > 1.0:
            count += 1
        return count

    assert believed() == BELIEVED_FOR
    assert factor(surprises) == 1.0
    surprises.note(PLAN, 3 * EXPECTED)
    assert believed() == 2 * BELIEVED_FOR, "one more says that it is still so"
