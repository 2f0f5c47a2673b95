"""Aborts and preemptions at any moment leave nothing behind."""

from __future__ import annotations

import random
from typing import Any

import pytest

TEXTS = [
    " ".join(f"Sheet {n} of map {m} shows {n * m % 13 + 2} wells and {n * 7 % 9} roads." for n in range(24))
    for m in range(3, 9)
]


def prompts(source: random.Random) -> list[str]:
    made = []
    for _ in range(12):
        parts = source.sample(TEXTS, source.randint(1, 3))
        made.append(f"Instruction {source.randrange(10**6)}: read.\n\n" + "\n\n".join(parts) + "\n\nAnswer:")
    return made


@pytest.mark.parametrize("times", [40, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_random_aborts_and_preemptions_leave_nothing_behind(engine: Any, times: int) -> None:
    from vllm import SamplingParams

    source = random.Random(5)
    llm_engine, scheduler = engine.llm.llm_engine, engine.scheduler
    aborted = preempted = number = 0
    waiting = prompts(source)
    alive: set[str] = set()
    while aborted + preempted < times or alive:
        busy = aborted + preempted < times
        if busy and len(alive) < 6:
            if not waiting:
                waiting = prompts(source)
            number += 1
            sampling = SamplingParams(temperature=0, max_tokens=source.randint(1, 4), ignore_eos=True)
            request_id = f"churn-{number}"
            llm_engine.add_request(request_id, {"prompt": waiting.pop(), "cache_salt": "churn"}, sampling)
            alive.add(request_id)
        action = source.random()
        if busy and alive and action < 0.6:
            victim = source.choice(sorted(alive))
            llm_engine.abort_request([victim])
            alive.discard(victim)
            aborted += 1
        elif busy and scheduler.running and action < 0.8:
            preempt(scheduler, source)
            preempted += 1
        for output in llm_engine.step():
            if output.finished:
                alive.discard(output.request_id)
    for _ in range(3):
        llm_engine.step()
    assert aborted > times // 4
    assert preempted > times // 20
    engine.check_integrity()
    assert all(block.ref_cnt == 0 or block.is_null for block in scheduler.kv_cache_manager.block_pool.blocks)


def preempt(scheduler: Any, source: random.Random) -> None:
    """What vLLM does when it runs out of blocks."""
    import time

    request = scheduler.running.pop(source.randrange(len(scheduler.running)))
    scheduler._preempt_request(request, time.monotonic())


def test_a_preempted_request_never_publishes_what_it_loaded(engine: Any) -> None:
    from vllm import SamplingParams

    text = TEXTS[1]
    engine.ask(f"A map.\n\n{text}\n\nAnswer:", salt="preempted", tokens=1)
    engine.settle()
    recipient = f"System: name the roads of the map below.\n\n{text}\n\nAnswer:"
    cold = engine.ask(recipient, salt="preempted, cold", reuse="off")
    donors = engine.stats().donors
    sampling = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    llm_engine = engine.llm.llm_engine
    llm_engine.add_request("victim", {"prompt": recipient, "cache_salt": "preempted"}, sampling)
    for _ in range(4):
        llm_engine.step()
    preempt(engine.scheduler, random.Random(1))
    while llm_engine.has_unfinished_requests():
        llm_engine.step()
    engine.settle()
    assert engine.stats().donors == donors
    probe = engine.ask(recipient, salt="preempted", reuse="off")
    assert probe.cached_tokens == 0
    assert probe.text == cold.text
    engine.check_integrity()


def test_answers_are_right_after_all_that(engine: Any, divergence: Any) -> None:
    text = TEXTS[0]
    engine.ask(f"A map.\n\n{text}\n\nAnswer:", salt="calm", tokens=1)
    engine.settle()
    recipient = f"System: count the wells of the map below, one by one.\n\n{text}\n\nAnswer:"
    reused = engine.ask(recipient, salt="calm")
    cold = engine.ask(recipient, salt="calm, cold", reuse="off")
    assert reused.cached_tokens > 0
    assert divergence(cold, reused) < 0.2
