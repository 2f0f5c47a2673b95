"""Random sequences of what may happen to vLLM's real scheduler: right answers, nothing stale, nothing left behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any
from unittest.mock import Mock

import pytest

from semblend_core.serving import ProbeTrust

Prompt = list[int]
MODES: dict[str, dict[str, bool]] = {
    "overlapping": {},
    "overlapping, second model runner": {"slots_of_their_own": True},
    "one by one": {"overlapping": False},
}
SALTS = ("one", "two", None)


def some(source: random.Random, length: int) -> Prompt:
    return [source.randrange(40_000) for _ in range(length)]


class Churn:
    """One random sequence."""

    def __init__(self, engine: Any, source: random.Random, passages: list[Prompt]) -> None:
        self.engine, self.source, self.passages = engine, source, passages
        self.lengths: dict[str, int] = {}
        self.aborted: set[str] = set()
        engine.worker.fails = lambda order: source.random() < 0.3
        engine.worker.says_nothing = lambda probe: source.random() < 0.1
        # Here they fail far more often than where they are given up.
        engine.side.admission.probes = ProbeTrust(engine.side.admission._settings)

    def run(self) -> None:
        actions = {
            self.add: 12,
            self.engine.step: 60,
            self.abort: 4,
            self.preempt: 5,
            self.run_short: 4,
            self.lose_a_donor: 2,
            self.reset: 0.5,
            self.pause: 2,
            self.go_on: 4,
            self.update_weights: 0.7,
            self.purge: 1,
        }
        for _ in range(self.source.randint(10, 50)):
            self.source.choices(list(actions), weights=list(actions.values()))[0]()
        self.go_on()
        self.engine.finish()

    def add(self) -> None:
        source = self.source
        if len(self.engine.scheduler.requests) < 6:
            parts = source.sample(self.passages, source.randint(1, 4))
            instruction, question = some(source, source.choice((0, 5, 40))), some(source, source.choice((1, 8, 30)))
            prompt = list(chain(instruction, *parts, question))
            tokens = source.choice((1, 2, 5, 24))
            request = self.engine.add(prompt, tokens, salt=source.choice(SALTS))
            self.lengths[request.request_id] = tokens

    def abort(self) -> None:
        alive = sorted(self.engine.scheduler.requests.keys() & self.lengths.keys())
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

    def pause(self) -> None:
        self.engine.pause(self.source.choice(("PAUSED_ALL", "PAUSED_NEW")))

    def go_on(self) -> None:
        self.engine.pause("UNPAUSED")

    def purge(self) -> None:
        """Also with steps in flight. What of the tenant is under way leaves nothing behind."""
        salt = self.source.choice(SALTS)
        self.engine.side.purge(salt)
        assert self.engine.side.held_by(salt).nothing

    def reset(self) -> bool:
        """Also with steps in flight."""
        running_too, connector_too = self.source.random() < 0.7, self.source.random() < 0.5
        done = bool(self.engine.scheduler.reset_prefix_cache(running_too, connector_too))
        assert done or not running_too
        assert self.engine.side.provider.stats().donors == 0
        return done

    def update_weights(self) -> None:
        """As trainers do it. Where vLLM cannot reset, since requests run, they do not."""
        self.engine.drain()
        if self.reset():
            self.engine.worker.weights += 1


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("sequences", [60, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_answers_are_right_and_nothing_is_left_behind(
    new_overlapping: Callable[..., Any], mode: str, sequences: int, source: random.Random, answer: Any, new_router: Any
) -> None:
    engine = new_overlapping(**MODES[mode], tokens_of_a_step=96)
    guard = engine.side.guard  # Whatever has room is compared.
    guard._settings = replace(guard._settings, quality_share=1.0)
    compared = guard._controller.compared = Mock(wraps=guard._controller.compared)
    passages = [some(source, source.randint(90, 160)) for _ in range(5)]
    router = new_router()
    for _ in range(sequences):
        churn = Churn(engine, source, passages)
        churn.run()
        engine.check_nothing_is_left()
        assert (engine.worker.wrong_weights, engine.worker.leaks) == (0, 0)
        for request_id, length in churn.lengths.items():
            right = answer(engine.requests[request_id].prompt_token_ids, length)
            given = engine.answers[request_id]
            assert given == right[: len(given)]
            assert len(given) == length or request_id in churn.aborted
        router.hear(engine.announced)
        engine.announced.clear()
        for block, block_hash in engine.cached_blocks().items():
            assert block_hash not in router.held or engine.worker.holds_exactly(block, router.tokens[block_hash])
    assert compared.call_count > 0
    assert all(agreement == 1 for _, _, agreement in (call.args for call in compared.call_args_list))
    stats = engine.side.provider.stats()
    assert engine.worker.weights > sequences / 20
    assert stats.outcomes["materialized"] > sequences / 4
    assert stats.declines["donor_evicted"] > sequences / 8
