"""Workers in processes of their own tell of a copied prompt with a step: an idle vLLM goes on stepping for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semblend_core.testing import passage


def test_a_donor_that_takes_long_to_copy_is_found_without_a_next_request(new_overlapping: Callable[..., Any]) -> None:
    engine = new_overlapping()
    seconds = 0.0
    keeper = engine.side.keeper
    keeper.captures._now = lambda: seconds
    engine.worker.is_copying = True
    engine.add(passage(1, 300), 1)
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    engine.drain()
    for seconds in (5.0, 30.0, 90.0):
        assert engine.scheduler.has_requests(), seconds
        engine.schedule()
        engine.drain()
        assert len(keeper.donors) == 0
    engine.worker.is_copying = False
    engine.finish()
    assert len(keeper.donors) == 1
    engine.check_nothing_is_left()


def test_an_idle_engine_does_not_step_for_ever(new_overlapping: Callable[..., Any]) -> None:
    engine = new_overlapping()
    seconds = 0.0
    engine.side.keeper.captures._now = lambda: seconds
    engine.worker.is_copying = True
    engine.add(passage(1, 300), 1)
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    engine.drain()
    assert engine.scheduler.has_requests()
    seconds = 121.0
    engine.finish()
