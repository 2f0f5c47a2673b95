"""Probes between steps that overlap: whatever happens while one is under way, answers are right and nothing is left."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import pytest
from vllm.config import SpeculativeConfig

from semblend_core import DeclineReason, ProbeEnd

Prompt = list[int]
ANSWER = 6
MODES: dict[str, dict[str, bool]] = {
    "overlapping": {},
    "one by one": {"overlapping": False},
}


def some(source: random.Random, length: int) -> Prompt:
    return [source.randrange(40_000) for _ in range(length)]


@pytest.fixture(params=MODES)
def engine(request: pytest.FixtureRequest, new_overlapping: Callable[..., Any]) -> Any:
    return new_overlapping(**MODES[request.param], tokens_of_a_step=512, places=24)


@pytest.fixture
def passages(engine: Any, source: random.Random) -> list[Prompt]:
    """Three, each of another donor."""
    made = [some(source, 200) for _ in range(3)]
    for passage in made:
        engine.add(some(source, 24) + passage + some(source, 10), 1)
    engine.finish()
    assert engine.side.provider.stats().donors == 3
    return made


@pytest.fixture
def prompt(passages: list[Prompt], source: random.Random) -> Prompt:
    return with_question(source, passages)


def with_question(source: random.Random, passages: Sequence[Prompt]) -> Prompt:
    return [token for passage in passages for token in some(source, 4) + passage] + some(source, 12)


def ends(engine: Any) -> dict[ProbeEnd, int]:
    return dict(engine.side.provider.stats().probes)


def check(engine: Any, answer: Any, *requests: Any) -> None:
    engine.finish()
    for request in requests:
        assert engine.answers[request.request_id] == answer(request.prompt_token_ids, request.max_tokens)
    assert (engine.worker.wrong_weights, engine.worker.leaks) == (0, 0)
    engine.check_nothing_is_left()


def until_probed(engine: Any, request: Any) -> None:
    while (claim := engine.side.long_claims.probed(request.request_id)) is None or not claim.begun:
        engine.step()


def test_rows_are_computed_with_the_rest_of_the_prompt(engine: Any, prompt: Prompt, answer: Any) -> None:
    request = engine.add(prompt, ANSWER)
    until_probed(engine, request)
    life = engine.side.requests.get(request.request_id)
    first = sum(end - start for start, end in life.claim.first_rows)
    while not engine.answers[request.request_id]:
        engine.step()
    claim = life.claim
    check(engine, answer, request)
    assert ends(engine) == {ProbeEnd.CHOSE: 1}
    assert engine.side.provider.stats().confirmed_tokens == claim.reused_tokens
    assert engine.computed[request.request_id] == first + len(prompt) - claim.reused_tokens + ANSWER - 1


@pytest.mark.parametrize("steps", range(7))
def test_an_abort_after_any_step(engine: Any, prompt: Prompt, answer: Any, steps: int) -> None:
    request = engine.add(prompt, ANSWER)
    for _ in range(steps):
        engine.step()
    engine.abort(request)
    check(engine, answer)
    check(engine, answer, engine.add(prompt, ANSWER))


@pytest.mark.parametrize("steps", range(1, 7))
def test_a_preemption_after_any_step(engine: Any, prompt: Prompt, answer: Any, steps: int) -> None:
    request = engine.add(prompt, ANSWER)
    for _ in range(steps):
        engine.step()
    if request in engine.scheduler.running:
        engine.preempt(request)
    check(engine, answer, request)


@pytest.mark.parametrize("steps", range(1, 6))
@pytest.mark.parametrize("running_too", [False, True])
def test_a_reset_after_any_step(engine: Any, prompt: Prompt, answer: Any, steps: int, running_too: bool) -> None:
    request = engine.add(prompt, ANSWER)
    for _ in range(steps):
        engine.step()
    engine.scheduler.reset_prefix_cache(running_too)
    check(engine, answer, request)


@pytest.mark.parametrize("state", ["PAUSED_ALL", "PAUSED_NEW"])
def test_a_pause_in_between(engine: Any, prompt: Prompt, answer: Any, state: str) -> None:
    request = engine.add(prompt, ANSWER)
    until_probed(engine, request)
    engine.pause(state)
    for _ in range(6):
        engine.step()
    engine.pause("UNPAUSED")
    check(engine, answer, request)


def test_a_purge_in_between(engine: Any, prompt: Prompt, answer: Any) -> None:
    request = engine.add(prompt, ANSWER)
    until_probed(engine, request)
    engine.side.purge("tenant")
    check(engine, answer, request)
    assert engine.side.held_by("tenant").nothing


@pytest.mark.parametrize("silent", [False, True])
def test_a_probe_that_shows_nothing(engine: Any, prompt: Prompt, answer: Any, silent: bool) -> None:
    engine.worker.says_nothing = lambda probe: silent
    engine.worker.fails = lambda order: hasattr(order, "question")
    request = engine.add(prompt, ANSWER)
    check(engine, answer, request)
    assert ends(engine) == {ProbeEnd.FAILED: 1}
    assert engine.side.provider.stats().confirmed_tokens > 0


def test_probes_that_always_fail_are_given_up(
    engine: Any, passages: list[Prompt], answer: Any, source: random.Random
) -> None:
    engine.worker.fails = lambda order: hasattr(order, "question")
    for order in permutations(passages):
        check(engine, answer, engine.add(with_question(source, order), ANSWER))
    assert ends(engine) == {ProbeEnd.FAILED: 3}
    assert engine.side.provider.stats().outcomes["materialized"] == 6


def test_a_correction_that_fails_behind_a_probe(engine: Any, prompt: Prompt, answer: Any) -> None:
    engine.worker.fails = lambda order: hasattr(order, "shift")
    request = engine.add(prompt, ANSWER)
    check(engine, answer, request)
    assert ends(engine) == {ProbeEnd.CHOSE: 1}
    stats = engine.side.provider.stats()
    assert stats.confirmed_tokens == 0, "its load landed, and nothing of it was of use"
    assert stats.declines.get(DeclineReason.LOAD_FAILED) == 1


def test_a_load_that_fails(engine: Any, prompt: Prompt, answer: Any) -> None:
    engine.worker.fails = lambda order: hasattr(order, "reused_tokens")
    request = engine.add(prompt, ANSWER)
    check(engine, answer, request)
    assert ends(engine) == {ProbeEnd.ENDED: 1}
    assert engine.side.provider.stats().confirmed_tokens == 0


def test_equal_prompts_at_once_are_probed_once(engine: Any, prompt: Prompt, answer: Any) -> None:
    requests = [engine.add(prompt, ANSWER) for _ in range(3)]
    check(engine, answer, *requests)
    assert ends(engine) == {ProbeEnd.CHOSE: 1}


def test_other_questions_at_once(engine: Any, prompt: Prompt, answer: Any, source: random.Random) -> None:
    requests = [engine.add(prompt + some(source, 8), ANSWER) for _ in range(4)]
    check(engine, answer, *requests)


def test_beside_others_that_fill_the_steps(engine: Any, prompt: Prompt, answer: Any, source: random.Random) -> None:
    others = [engine.add(some(source, 150), 24) for _ in range(3)]
    request = engine.add(prompt, ANSWER)
    check(engine, answer, request, *others)


def test_without_blocks_to_wait_with_the_prompt_is_computed(
    engine: Any, prompt: Prompt, answer: Any, source: random.Random
) -> None:
    allocate = engine._allocate
    engine._allocate = lambda *args, **how: None if how.get("delay_cache_blocks") else allocate(*args, **how)
    other = engine.add(some(source, 40), 30)
    engine.step()
    request = engine.add(prompt, ANSWER)
    for _ in range(12):
        engine.step()
    declines = engine.side.provider.stats().declines
    assert DeclineReason.ALLOCATION_FAILED not in declines, "somebody runs, and will give blocks back"
    check(engine, answer, other, request)
    assert engine.side.provider.stats().declines[DeclineReason.ALLOCATION_FAILED] == 1
    assert engine.has_true_hashes(request)


def test_a_prompt_that_fills_the_pool_is_answered_with_guesses_too(
    new_overlapping: Callable[..., Any], source: random.Random, answer: Any
) -> None:
    """vLLM wants room for its guesses beside what waits with all of its blocks."""
    blocks = 40

    def guessing(config: Any) -> None:
        models = {"target_model_config": config.model_config, "target_parallel_config": config.parallel_config}
        config.speculative_config = SpeculativeConfig(
            method="ngram", num_speculative_tokens=4, prompt_lookup_max=4, prompt_lookup_min=2, **models
        )

    engine = new_overlapping(overlapping=False, tokens_of_a_step=512, places=24, blocks=blocks, change=guessing)
    passages = [some(source, 150) for _ in range(3)]
    for passage in passages:
        engine.add(passage + some(source, 10), 1)
    engine.finish()
    prompt = with_question(source, passages)
    prompt += some(source, (blocks - 1) * 16 - 1 - len(prompt))
    check(engine, answer, engine.add(prompt, 1))
