"""Served answers are compared with cold ones in the background, and nobody waits for it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import pytest

from semblend_core import tenant_of_salt

Prompt: TypeAlias = list[int]
ANSWER = 20


def some(source: random.Random, length: int) -> Prompt:
    return [source.randrange(40_000) for _ in range(length)]


@pytest.fixture(params=[False, True], ids=["all rows", "computed rows"])
def engine(request: pytest.FixtureRequest, new_overlapping: Callable[..., Any]) -> Any:
    return comparing(new_overlapping(blocks=400, slots_of_their_own=request.param))


def comparing(engine: Any, share: float = 1.0) -> Any:
    guard = engine.side.guard
    guard._settings = replace(guard._settings, quality_share=share)
    engine.heard, engine.compared = Counter(), []  # vLLM takes the news to its metrics with each step.
    guard.news.count = lambda result: engine.heard.update([result])
    guard.news.compared = lambda *found: engine.compared.append(found)
    return engine


@pytest.fixture
def document(engine: Any, source: random.Random) -> Prompt:
    return brought(engine, source)


def brought(engine: Any, source: random.Random, **options: Any) -> Prompt:
    """A document of somebody else's prompt."""
    document = some(source, 480)
    engine.add(some(source, 24) + document + some(source, 20), **options)
    engine.finish()
    return document


def about(source: random.Random, document: Prompt) -> Prompt:
    return some(source, 40) + document + some(source, 20)


def own_requests(engine: Any) -> list[str]:
    return [request_id for request_id in engine.scheduler.requests if request_id.startswith("semblend-")]


def serve(engine: Any, request: Any) -> None:
    """Until it has been answered; nothing more is done."""
    while request.request_id in engine.scheduler.requests:
        engine.step()


def test_an_answer_is_scored_behind_served_and_behind_exact_kv(
    engine: Any, document: Prompt, source: random.Random
) -> None:
    before = engine.side.provider.stats()
    request = engine.add(about(source, document), ANSWER)
    engine.finish()
    assert engine.heard == {"compared": 1}
    assert [(kind, agreement) for kind, agreement, _ in engine.compared] == [("one_place", 1)]
    after = engine.side.provider.stats()
    assert after.lookups == before.lookups + 1, "nothing of ours is looked up, or counted"
    assert sum(after.outcomes.values()) == sum(before.outcomes.values()) + 1
    assert after.donors == before.donors, "nor does it become a donor"
    assert after.background_tokens >= 480
    assert engine.answers.keys() >= {request.request_id}
    engine.check_nothing_is_left()


def test_only_the_answer_is_computed_behind_served_kv(engine: Any, document: Prompt, source: random.Random) -> None:
    engine.add(about(source, document), ANSWER)
    engine.finish()
    first, last = (engine.computed[f"semblend-scores-{number}"] for number in sorted(scorings(engine)))
    assert first == last <= ANSWER + 16


def scorings(engine: Any) -> list[int]:
    return [int(name.rpartition("-")[2]) for name in engine.computed if name.startswith("semblend-scores-")]


def test_what_strays_is_seen(engine: Any, document: Prompt, source: random.Random) -> None:
    engine.worker.strays = True
    engine.add(about(source, document), ANSWER)
    engine.finish()
    ((_, agreement, kl),) = engine.compared
    assert agreement == 0
    assert kl > 0


def test_what_strays_too_far_spends_more_and_is_declined_at_last(engine: Any, source: random.Random) -> None:
    engine.worker.strays = True
    for _ in range(60):
        engine.add(about(source, brought(engine, source)), 4)
        engine.finish()
        if engine.side.provider.stats().declines.get("quality_target"):
            break
    assert engine.heard["compared"] < 50
    assert engine.side.guard._spendings() == {"one_place": 0.0, "few_places": 1.0, "many_places": 1.0}
    engine.check_nothing_is_left()


def test_a_turn_that_goes_on_in_place_is_compared_too(engine: Any, document: Prompt, source: random.Random) -> None:
    prompt = about(source, document)
    for _ in range(3):
        request = engine.add(prompt, ANSWER)
        serve(engine, request)
        engine.side.guard.clear()  # The opening stays approximate.
        prompt = prompt + engine.answers[request.request_id] + some(source, 15)
    engine.heard.clear()
    request = engine.add(prompt, ANSWER)
    engine.finish()
    assert engine.heard == {"compared": 1}


def test_without_a_share_nothing_is_computed(new_overlapping: Callable[..., Any], source: random.Random) -> None:
    engine = comparing(new_overlapping(blocks=400), share=0.0)
    engine.add(about(source, brought(engine, source)), ANSWER)
    engine.finish()
    assert not any(name.startswith("semblend-") for name in engine.computed)
    assert engine.side.guard.next() is None


def test_while_the_engine_is_full_nothing_is_compared(engine: Any, document: Prompt, source: random.Random) -> None:
    def keep_full() -> None:
        while len(engine.scheduler.requests) < 12:
            engine.add(about(source, document) if source.random() < 0.5 else some(source, 60), ANSWER)

    for _ in range(150):
        keep_full()
        engine.step()
        assert own_requests(engine) == []
    assert engine.side.guard.next() is not None, "there was something to compare"
    assert "compared" not in engine.heard
    engine.finish()
    assert engine.side.guard.next() is None, "it was looked at when there was room"


def test_whoever_comes_waits_for_nothing_of_ours(engine: Any, document: Prompt, source: random.Random) -> None:
    """Whatever of a comparison is under way."""
    engine.add(about(source, document), ANSWER)
    for _ in range(40):
        while not own_requests(engine) and engine.scheduler.has_requests():
            engine.step()
        engine.add(some(source, 50), 2)
        while engine.in_flight:
            engine.update()
        output = engine.schedule()
        done = [name for name in output.num_scheduled_tokens if name.startswith("semblend-")]
        assert not done, "a step with somebody's prompt has nothing of ours"
        serve_all(engine)
    engine.finish()
    engine.check_nothing_is_left()


def serve_all(engine: Any) -> None:
    while any(not name.startswith("semblend-") for name in engine.scheduler.requests):
        engine.step()


def test_it_is_given_up_where_somebody_always_comes(engine: Any, document: Prompt, source: random.Random) -> None:
    test_whoever_comes_waits_for_nothing_of_ours(engine, document, source)
    assert engine.heard.total() >= 1


def test_what_was_evicted_is_not_compared(engine: Any, document: Prompt, source: random.Random) -> None:
    request = engine.add(about(source, document), ANSWER)
    serve(engine, request)
    for _ in range(30):  # Each takes blocks, and gives them back.
        serve(engine, engine.add(some(source, 600), 2, "off"))
        engine.side.guard.next()
    engine.finish()
    assert engine.heard in ({"evicted": 1}, {"compared": 1})
    engine.check_nothing_is_left()


@pytest.mark.parametrize("behind", ["served", "exact"])
@pytest.mark.parametrize("when", ["before", "within"])
def test_what_goes_at_the_last_moment_is_not_computed_for_its_scores(
    engine: Any, document: Prompt, source: random.Random, monkeypatch: pytest.MonkeyPatch, when: str, behind: str
) -> None:
    """A prompt's scores take as much memory as all that is computed of it, and whoever decodes waits for it."""
    manager = engine.scheduler.kv_cache_manager
    look, gone = manager.get_computed_blocks, []

    def evict(request: Any) -> None:
        """As somebody does who decodes in the same step."""
        comparison = engine.scheduler._comparing._now.comparison
        last = (len(comparison.prompt) - 1) // engine.scheduler.block_size - 1
        if not gone and (comparison.reused is not None) == (behind == "exact"):
            (block,) = manager.block_pool.get_cached_block(request.block_hashes[last], [0])
            manager.block_pool.evict_blocks({block.block_id})
            gone.append(block)

    def look_later(request: Any) -> Any:
        if when == "within" and request.request_id.startswith("semblend-scores"):
            evict(request)
        return look(request)

    monkeypatch.setattr(manager, "get_computed_blocks", look_later)
    engine.add(about(source, document), ANSWER)
    while engine.scheduler.has_requests():
        for name in own_requests(engine):
            request = engine.scheduler.requests[name]
            if when == "before" and name.startswith("semblend-scores") and not request.num_computed_tokens:
                evict(request)
        engine.step()
    engine.add(some(source, 20), 2)  # What was stopped goes on behind the next step.
    engine.finish()
    scored = [tokens for name, tokens in engine.computed.items() if name.startswith("semblend-scores")]
    assert gone
    assert all(tokens <= ANSWER + engine.scheduler.block_size for tokens in scored)
    assert engine.heard == ({"evicted": 1} if behind == "served" else {"compared": 1})
    engine.check_nothing_is_left()


def test_it_stays_with_its_tenant(engine: Any, source: random.Random) -> None:
    document = brought(engine, source, salt="a")
    prompt = about(source, document)
    engine.add(prompt, ANSWER, salt="a")
    engine.finish()
    assert engine.heard == {"compared": 1}
    assert engine.worker.leaks == 0
    stranger = engine.add(prompt, 2, salt="b")
    engine.finish()
    assert engine.computed[stranger.request_id] >= len(prompt), "what is exact by now is a's"


@pytest.mark.parametrize("when", range(0, 12, 2))
def test_a_purge_ends_it(engine: Any, source: random.Random, when: int) -> None:
    document = brought(engine, source, salt="a")
    request = engine.add(about(source, document), ANSWER, salt="a")
    serve(engine, request)
    for _ in range(when):
        engine.step()
    engine.side.purge("a")
    assert engine.side.guard.held_by(tenant_of_salt("a")).nothing
    engine.finish()
    assert set(engine.heard) <= {"forgotten", "compared"}
    engine.check_nothing_is_left()


@pytest.mark.parametrize("when", range(0, 12, 2))
def test_a_reset_ends_it(engine: Any, document: Prompt, source: random.Random, when: int) -> None:
    request = engine.add(about(source, document), ANSWER)
    serve(engine, request)
    for _ in range(when):
        engine.step()
    engine.drain()
    assert engine.scheduler.reset_prefix_cache()
    engine.worker.weights += 1
    engine.finish()
    assert set(engine.heard) <= {"forgotten", "compared"}
    assert engine.worker.wrong_weights == 0
    engine.check_nothing_is_left()


def test_nothing_that_it_computes_is_announced_or_found_as_exact(
    engine: Any, document: Prompt, source: random.Random
) -> None:
    prompt = about(source, document)
    request = engine.add(prompt, ANSWER)
    engine.finish()
    said = [each for event in engine.announced if type(event).__name__ == "BlockStored" for each in event.block_hashes]
    names = engine.names_of_lineages(request)
    assert names
    assert not names & set(said)
    text = prompt + engine.answers[request.request_id]
    again = engine.add(text, 2, "off")
    engine.finish()
    whole = (len(prompt) - 1) // 16 * 16
    assert engine.computed[again.request_id] == len(text) - whole + 1, "the prompt is exact, the scored answer unknown"


def test_what_fails_in_it_reaches_no_request(
    engine: Any, document: Prompt, source: random.Random, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    monkeypatch.setattr("semblend_vllm.compat.scheduling.take_scores", lambda *args: 1 / 0)
    prompt = about(source, document)
    request = engine.add(prompt, ANSWER)
    engine.finish()
    assert engine.answers[request.request_id] == answer(prompt, ANSWER)
    assert engine.heard == {"failed": 1}
    engine.check_nothing_is_left()


@pytest.mark.parametrize("left", [1, 2, 15, 16, 17])
def test_nothing_is_asked_of_vllm_that_is_longer_than_it_lets_requests_be(
    engine: Any, document: Prompt, source: random.Random, left: int
) -> None:
    """An answer that ends where the context does."""
    prompt = about(source, document)
    engine.side.longest_compared = len(prompt) + left - 1
    engine.add(prompt, left)
    engine.finish()
    assert engine.heard == ({"compared": 1} if left > 1 else {})
    assert all(engine.computed[name] <= left + 15 for name in engine.computed if name.startswith("semblend-scores-")), (
        "and no more than what is cached is left out"
    )
