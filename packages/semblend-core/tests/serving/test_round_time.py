"""A round of the scheduler has time for a few lookups that take long, and for many that do not."""

from __future__ import annotations

import pytest

from semblend_core.serving import RoundTime


def asked_about(round_time: RoundTime, now: list[float], each_s: float) -> int:
    """How many of a hundred are asked about in a round."""
    round_time.begin()
    for number in range(100):
        if round_time.is_up:
            return number
        with round_time.spending():
            now[0] += each_s
    return 100


@pytest.mark.parametrize(("each_s", "asked"), [(0.25, 4), (0.001, 100), (10.0, 1)])
def test_those_in_front_are_asked_about_while_there_is_time(each_s: float, asked: int) -> None:
    now = [0.0]
    round_time = RoundTime(0.25, clock=lambda: now[0])
    assert [asked_about(round_time, now, each_s) for _ in range(3)] == [asked] * 3


def test_one_is_always_asked_about() -> None:
    now = [0.0]
    assert asked_about(RoundTime(0.0, clock=lambda: now[0]), now, 0.001) == 1
