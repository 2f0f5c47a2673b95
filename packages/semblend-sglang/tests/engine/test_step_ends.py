"""What a batch is said to take, where SGLang asks for its results behind the launch of the next one."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest

from semblend_core import Settings
from semblend_core.costs import Step
from semblend_core.serving import CostGate
from semblend_sglang.compat.timing import process_result, run_batch

LAUNCH_S = 0.2
"""Of the next batch: far longer than anything else here."""


class Told(CostGate):
    def _took(self, step: Step, microseconds: float) -> None:
        took.append(microseconds / 1e6)
        super()._took(step, microseconds)


took: list[float] = []


@pytest.fixture(autouse=True)
def from_nothing() -> None:
    took.clear()


def scheduler(**fields: Any) -> SimpleNamespace:
    side = SimpleNamespace(
        costs=Told(Settings(cost_dir="none"), step_tokens=8192),
        landing=SimpleNamespace(started={}),
        capturing=SimpleNamespace(catch_up=lambda: None),
    )
    return SimpleNamespace(tree_cache=SimpleNamespace(semblend=side), **fields)


def prefill(name: str) -> SimpleNamespace:
    request = SimpleNamespace(rid=name, origin_input_ids=[0] * 100, output_ids=[])
    mode = SimpleNamespace(is_extend=lambda: True)
    return SimpleNamespace(reqs=[request], prefix_lens=[0], extend_lens=[100], forward_mode=mode)


def two_batches_that_overlap(asked: SimpleNamespace) -> None:
    costs, results = asked.tree_cache.semblend.costs, []
    for name in ("first", "second"):
        costs.begin_step()
        if results:
            time.sleep(LAUNCH_S)
        results.append(run_batch(lambda *_: SimpleNamespace(), asked, prefill(name)))
    for result in results:
        process_result(lambda *_: None, asked, prefill("any"), result)


def test_a_batch_is_not_charged_for_the_launch_of_the_next() -> None:
    two_batches_that_overlap(scheduler(enable_overlap=True, server_args=SimpleNamespace(device="cpu")))
    first, second = took
    assert first < LAUNCH_S / 2
    assert second >= LAUNCH_S


def test_where_sglang_waits_for_each_batch_its_results_tell() -> None:
    two_batches_that_overlap(scheduler(enable_overlap=False))
    first, _ = took
    assert first >= LAUNCH_S


def test_where_ends_cannot_be_told_that_is_said_once_and_results_tell(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        two_batches_that_overlap(scheduler())
    assert len(caplog.records) == 1
    first, _ = took
    assert first >= LAUNCH_S
