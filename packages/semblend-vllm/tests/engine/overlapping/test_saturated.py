"""Every place taken: what is reused on an idle engine is reused then too, and nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

MOST_WAIT = 1.05
LEAST_REUSE = 0.9


@pytest.fixture
def saturation(helpers: None) -> Any:
    import saturation

    return saturation


@pytest.fixture
def traffic(saturation: Any) -> Any:
    return saturation.Traffic(requests=160, output_tokens=100)


def test_a_full_batch_reuses_as_much_as_an_idle_one(saturation: Any, traffic: Any) -> None:
    idle = saturation.serve(replace(traffic, alive=1, output_tokens=1))
    assert idle.reused_requests == idle.reusable_requests
    full = saturation.serve(traffic)
    assert full.reused_tokens >= LEAST_REUSE * idle.reused_tokens, full.declines


def test_nobody_waits_longer_than_with_reuse_off(saturation: Any, traffic: Any) -> None:
    on, off = (saturation.serve(replace(traffic, wish=wish)) for wish in ("on", "off"))
    for kind in on.waits:
        assert on.mean_wait(kind) <= MOST_WAIT * off.mean_wait(kind), kind


def test_a_request_with_many_rows_delays_those_behind_it_by_one_step(saturation: Any) -> None:
    calls: Callable[[str], int] = saturation.calls_until_short_ones_end
    assert calls("on") <= calls("off") + saturation.STEP
