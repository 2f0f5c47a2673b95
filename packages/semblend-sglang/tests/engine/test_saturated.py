"""Every place taken: what is reused on an idle engine is reused then too, and nobody waits for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from semblend_core.testing.benchmarks import saturation

TRAFFIC = saturation.Traffic(requests=200, output_tokens=30)


@pytest.fixture
def batches(configured: None) -> Any:
    import full_batches

    return full_batches


def test_a_full_batch_reuses_as_much_as_an_idle_one(batches: Any) -> None:
    idle = batches.serve(TRAFFIC.idle())
    assert idle.reused_requests == sum(asked.kind == "reusable" for asked in TRAFFIC.asked())
    full = batches.serve(TRAFFIC)
    assert full.reused_tokens >= saturation.LEAST_REUSE * idle.reused_tokens, full.declines


def test_nobody_waits_longer_than_with_reuse_off(batches: Any) -> None:
    on, off = (batches.serve(replace(TRAFFIC, wish=wish)) for wish in ("on", "off"))
    for kind in on.waits:
        assert on.mean_wait(kind) <= saturation.MOST_WAIT * off.mean_wait(kind), kind


def test_requests_that_decode_take_no_reuse_away(batches: Any) -> None:
    assert {decoding: batches.reused_beside(decoding) for decoding in (0, 6, 10, 12)} == dict.fromkeys(
        (0, 6, 10, 12), batches.reused_beside(0)
    )
