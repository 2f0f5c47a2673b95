"""Every place taken: what is reused on an idle engine is reused then too, and nobody waits for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

MOST_WAIT = 1.05
LEAST_REUSE = 0.9


@pytest.fixture
def saturation(configured: None) -> Any:
    import saturation

    return saturation


@pytest.fixture
def traffic(saturation: Any) -> Any:
    return saturation.Traffic(requests=200, output_tokens=30)


def test_a_full_batch_reuses_as_much_as_an_idle_one(saturation: Any, traffic: Any) -> None:
    idle = saturation.serve(replace(traffic, alive=1, output_tokens=1))
    assert idle.reused_requests == idle.reusable_requests
    full = saturation.serve(traffic)
    assert full.reused_tokens >= LEAST_REUSE * idle.reused_tokens, full.declines


def test_nobody_waits_longer_than_with_reuse_off(saturation: Any, traffic: Any) -> None:
    on, off = (saturation.serve(replace(traffic, wish=wish)) for wish in ("on", "off"))
    for kind in on.waits:
        assert on.mean_wait(kind) <= MOST_WAIT * off.mean_wait(kind), kind


def test_requests_that_decode_take_no_reuse_away(saturation: Any) -> None:
    assert {decoding: saturation.reused_beside(decoding) for decoding in (0, 6, 10, 12)} == dict.fromkeys(
        (0, 6, 10, 12), saturation.reused_beside(0)
    )
