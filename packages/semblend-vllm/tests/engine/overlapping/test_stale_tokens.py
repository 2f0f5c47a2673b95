"""A load that fails while vLLM plans ahead: what was computed over it reaches nobody, whatever happens meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
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


def test_it_waits_with_its_blocks_in_hand(
    new_overlapping: Callable[..., Any], source: random.Random, answer: Any
) -> None:
    """Its rows took several steps, the last of them failed, and the next had no room for it."""
    engine = new_overlapping(tokens_of_a_step=48)
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


class Churn:
    """One random sequence of what may happen to an engine."""

    def __init__(self, engine: Any, source: random.Random, passages: list[Prompt]) -> None:
        self.engine, self.source, self.passages = engine, source, passages
        self.lengths: dict[str, int] = {}
        self.aborted: set[str] = set()
        engine.worker.fails = lambda order: source.random() < 0.4

    def run(self) -> None:
        actions = [self.add, self.abort, self.preempt, self.run_short, self.lose_a_donor, self.reset, self.engine.step]
        for _ in range(self.source.randint(10, 50)):
            self.source.choices(actions, weights=[12, 4, 5, 4, 2, 1, 60])[0]()
        self.engine.finish()

    def add(self) -> None:
        source = self.source
        if len(self.engine.scheduler.requests) < 6:
            parts = source.sample(self.passages, source.randint(1, 3))
            instruction, question = some(source, source.choice((0, 5, 40))), some(source, source.randint(1, 30))
            prompt = list(chain(instruction, *parts, question))
            tokens = source.choice((1, 2, 5, 24))
            self.lengths[self.engine.add(prompt, tokens).request_id] = tokens

    def abort(self) -> None:
        alive = sorted(self.engine.scheduler.requests)
        if alive:
            chosen = self.engine.requests[self.source.choice(alive)]
            self.aborted.add(chosen.request_id)
            self.engine.abort(chosen)

    def preempt(self) -> None:
        if self.engine.scheduler.running:
            self.engine.preempt(self.source.choice(self.engine.scheduler.running))

    def run_short(self) -> None:
        self.engine.run_short(self.source.randint(1, 3))

    def lose_a_donor(self) -> None:
        if self.engine.worker.donors:
            self.engine.worker.lose(self.source.choice(list(self.engine.worker.donors)))

    def reset(self) -> None:
        if not self.engine.in_flight:
            # vLLM preempts all, and then refuses if a request waits with its blocks in hand.
            with suppress(RuntimeError):
                self.engine.scheduler.reset_prefix_cache(reset_running_requests=True)


@pytest.mark.parametrize("mode", list(MODES))
def test_random_sequences_leave_nothing_behind(
    new_overlapping: Callable[..., Any], mode: str, source: random.Random, answer: Any, new_router: Any
) -> None:
    engine = new_overlapping(**MODES[mode], tokens_of_a_step=96)
    passages = [some(source, source.randint(90, 160)) for _ in range(5)]
    router = new_router()
    for _ in range(200):
        churn = Churn(engine, source, passages)
        churn.run()
        engine.check_nothing_is_left()
        for request_id, length in churn.lengths.items():
            right = answer(engine.requests[request_id].prompt_token_ids, length)
            given = engine.answers[request_id]
            assert given == right[: len(given)]
            assert len(given) == length or request_id in churn.aborted
        router.hear(engine.announced)
        engine.announced.clear()
        for block, block_hash in engine.cached_blocks().items():
            assert block_hash not in router.held or engine.worker.holds_exactly(block, router.tokens[block_hash])
    stats = engine.side.provider.stats()
    assert stats.outcomes["materialized"] > 100
    assert stats.declines["donor_evicted"] > 100
