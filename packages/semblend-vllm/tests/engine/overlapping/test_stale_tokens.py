"""A load that fails while vLLM plans ahead: what was computed over it reaches nobody, whatever happens meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

Prompt = list[int]
MODES: dict[str, dict[str, bool]] = {
    "overlapping": {},
    "overlapping, second model runner": {"slots_of_their_own": True},
    "one by one": {"overlapping": False},
}


def some(source: random.Random, length: int) -> Prompt:
    return [source.randrange(40_000) for _ in range(length)]


@pytest.fixture(params=list(MODES))
def engine(request: pytest.FixtureRequest, new_overlapping: Callable[..., Any]) -> Any:
    return new_overlapping(**MODES[request.param])


@pytest.fixture
def failing(engine: Any, source: random.Random) -> Any:
    """A request whose load has failed in the step that is in flight."""
    passage = some(source, 160)
    engine.add(some(source, 24) + passage + some(source, 20))
    engine.finish()
    engine.worker.fails = lambda order: True
    request = engine.add(some(source, 40) + passage + some(source, 20), 24)
    output = engine.schedule()
    assert [load.request_id for load in output.kv_connector_metadata.loads] == [request.request_id]
    assert not engine.has_true_hashes(request)
    return request


def check_served_cold(engine: Any, request: Any, answer: Any) -> None:
    engine.finish()
    assert engine.answers[request.request_id] == answer(request.prompt_token_ids, 24)
    assert list(request.output_token_ids) == engine.answers[request.request_id]
    assert engine.has_true_hashes(request)
    assert engine.side.provider.stats().declines["donor_evicted"] == 1
    assert len(engine.worker.donors) == 2, "computed like any other, it is a donor too"
    engine.check_nothing_is_left()


def test_it_runs_when_the_failure_is_heard(engine: Any, failing: Any, answer: Any) -> None:
    check_served_cold(engine, failing, answer)


def test_it_was_preempted_before(engine: Any, failing: Any, answer: Any) -> None:
    engine.preempt(failing)
    check_served_cold(engine, failing, answer)


def test_the_pool_runs_short_meanwhile(engine: Any, failing: Any, answer: Any) -> None:
    engine.run_short(1)
    if engine.depth > 1:
        output = engine.schedule()
        assert failing.request_id not in output.num_scheduled_tokens
    check_served_cold(engine, failing, answer)


def test_it_was_preempted_with_two_steps_in_flight(engine: Any, failing: Any, answer: Any) -> None:
    if engine.depth < 2:
        pytest.skip("one step at a time")
    output = engine.schedule()
    assert failing.request_id in output.num_scheduled_tokens
    engine.preempt(failing)
    check_served_cold(engine, failing, answer)


def test_it_is_preempted_again_with_stale_tokens_in_flight(engine: Any, failing: Any, answer: Any) -> None:
    if engine.depth < 2:
        pytest.skip("one step at a time")
    engine.schedule()
    engine.update()
    engine.schedule()  # It is back, while a step that counted on the failed load is still under way.
    engine.preempt(failing)
    check_served_cold(engine, failing, answer)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_it_is_aborted(engine: Any, failing: Any, steps: int) -> None:
    for _ in range(steps):
        engine.step()
    engine.abort(failing)
    engine.finish()
    engine.check_nothing_is_left()


def compute_few_rows(config: Any) -> None:
    config.kv_transfer_config.kv_connector_extra_config["recompute_limit"] = 0.15


def test_it_waits_with_its_blocks_in_hand(
    new_overlapping: Callable[..., Any], source: random.Random, answer: Any
) -> None:
    """Its rows took several steps, the last of them failed, and the next had no room for it."""
    engine = new_overlapping(tokens_of_a_step=48, change=compute_few_rows)
    first, second = some(source, 160), some(source, 160)
    engine.add(some(source, 24) + first + second + some(source, 20))
    engine.finish()
    engine.worker.fails = lambda order: not engine.side.long_claims.unfinished()
    request = engine.add(some(source, 40) + second + first + some(source, 20), 24)
    while engine.side.first_approximate(request) is None or engine.side.long_claims.unfinished():
        engine.step()
    if len(engine.in_flight) == engine.depth:
        engine.update()
    engine.run_short(1)
    engine.schedule()
    assert request.status.name == "WAITING"
    assert request.num_computed_tokens > 0
    engine.update()
    engine.finish()
    assert engine.answers[request.request_id] == answer(request.prompt_token_ids, 24)
    assert engine.has_true_hashes(request)
    engine.check_nothing_is_left()
