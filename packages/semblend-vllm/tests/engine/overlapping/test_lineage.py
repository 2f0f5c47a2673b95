"""What is computed behind approximate KV: who goes on from it takes it where it lies, and nobody else sees it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

Prompt: TypeAlias = list[int]
ANSWER = 20


def some(source: random.Random, length: int) -> Prompt:
    return [source.randrange(40_000) for _ in range(length)]


@pytest.fixture
def engine(new_overlapping: Callable[..., Any]) -> Any:
    return new_overlapping(blocks=400)


@pytest.fixture
def document(engine: Any, source: random.Random) -> Prompt:
    return brought(engine, source)


def brought(engine: Any, source: random.Random) -> Prompt:
    """A document of somebody else's prompt."""
    document = some(source, 480)
    engine.add(some(source, 24) + document + some(source, 20))
    engine.finish()
    return document


def ask(engine: Any, prompt: Prompt, **options: Any) -> Any:
    request = engine.add(prompt, ANSWER, **options)
    engine.finish()
    return request


def computed(engine: Any, request: Any) -> int:
    """Of the prompt: each answered token but the last is computed too."""
    return int(engine.computed[request.request_id]) - (ANSWER - 1)


def converse(engine: Any, source: random.Random, opening: Prompt, turns: int, **options: Any) -> list[Any]:
    asked, prompt = [], opening
    for _ in range(turns):
        asked.append(ask(engine, prompt, **options))
        prompt = prompt + engine.answers[asked[-1].request_id] + some(source, 15)
    return asked


def test_a_conversation_computes_what_it_would_without_reuse(
    engine: Any, document: Prompt, source: random.Random, answer: Any
) -> None:
    opening = some(source, 40) + document + some(source, 20)
    with_reuse = converse(engine, random.Random(1), opening, 10)
    plain = converse(engine, random.Random(1), opening, 10, wish="off", salt="another")
    assert computed(engine, with_reuse[0]) < 200 < computed(engine, plain[0])
    for one, other in zip(with_reuse[1:], plain[1:], strict=True):
        assert computed(engine, one) == computed(engine, other) < 64
    for request in with_reuse:
        assert engine.answers[request.request_id] == answer(request.prompt_token_ids, ANSWER)
    stats = engine.side.provider.stats()
    assert stats.outcomes["materialized"] == 10
    assert stats.confirmed_tokens > 10 * 400
    engine.check_nothing_is_left()


@pytest.mark.parametrize("options", [{"wish": "off"}, {"wish": "discovery"}, {"salt": "another"}])
def test_nobody_else_finds_it(
    engine: Any, document: Prompt, source: random.Random, answer: Any, options: dict[str, str]
) -> None:
    opening = some(source, 40) + document + some(source, 20)
    (first,) = converse(engine, source, opening, 1)
    stranger = ask(engine, opening, **options)
    assert stranger.request_id not in engine.worker.may_be_approximate
    assert computed(engine, stranger) >= len(opening) - 48, "no more than the exact opening"
    assert engine.answers[stranger.request_id] == answer(opening, ANSWER)
    assert not set(stranger.block_hashes[3:]) & set(first.block_hashes[3:])


def test_new_weights_end_it(engine: Any, document: Prompt, source: random.Random) -> None:
    opening = some(source, 40) + document + some(source, 20)
    converse(engine, source, opening, 1)
    engine.side.reset()
    again = ask(engine, opening)
    assert again.request_id not in engine.worker.may_be_approximate


def test_what_is_exact_by_now_wins(engine: Any, document: Prompt, source: random.Random) -> None:
    opening = some(source, 40) + document + some(source, 20)
    _, second = converse(engine, source, opening, 2)
    ask(engine, opening, wish="off")
    third = engine.add(list(second.prompt_token_ids), ANSWER)
    engine.schedule()
    taken = engine.side.requests.get(third.request_id).taken
    assert taken.exact >= len(opening) - 16
    assert taken.end > len(opening)
    engine.finish()
    assert computed(engine, third) <= 64
    engine.check_nothing_is_left()


def test_it_is_evicted_before_what_is_exact(new_overlapping: Callable[..., Any], source: random.Random) -> None:
    engine = new_overlapping(blocks=120)
    opening = some(source, 40) + brought(engine, source) + some(source, 20)
    first = converse(engine, source, opening, 1)[0]
    named = set(first.block_hashes[3:])
    exact = {block.block_id: block.block_hash for block in engine.pool.blocks if block.block_hash is not None}
    exact = {block: name for block, name in exact.items() if name[:32] not in named}
    fresh = sum(block.block_hash is None for block in engine.pool.blocks) - 1
    ask(engine, some(source, 16 * (fresh + 20)), wish="off")
    assert all(engine.pool.blocks[block].block_hash == name for block, name in exact.items())
    held = [name for name in named if engine.side.lineages.holds(name)]
    assert len(held) <= len(named) - 20
    again = ask(engine, opening + engine.answers[first.request_id] + some(source, 15))
    assert computed(engine, again) < 300
    engine.check_nothing_is_left()


@pytest.mark.parametrize("wanted", [3, 10, 20])
def test_no_exact_block_goes_while_there_are_others(
    new_overlapping: Callable[..., Any], source: random.Random, wanted: int
) -> None:
    """In whatever order they became free. vLLM keeps those without a name in front."""
    engine = new_overlapping(blocks=120)
    opening = some(source, 40) + brought(engine, source) + some(source, 20)
    names = engine.names_of_lineages(converse(engine, source, opening, 1)[0])
    pool = engine.pool
    free = pool.free_block_queue.get_all_free_blocks()
    source.shuffle(free)
    free.sort(key=lambda block: block.block_hash is not None)
    for block in free:
        pool.free_block_queue.remove(block)
    pool.free_block_queue.append_n(free)
    named = [block for block in free if block.block_hash is not None and block.block_hash[:32] in names]
    others = len(named) + sum(block.block_hash is None for block in free)
    exact = [block for block in free if block.block_hash is not None and block not in named]
    while others >= wanted:
        taken = pool.get_new_blocks(wanted)
        assert not set(map(id, taken)) & set(map(id, exact))
        others -= wanted
    taken = pool.get_new_blocks(wanted)
    assert len(set(map(id, taken)) & set(map(id, exact))) == wanted - others


def test_equal_prompts_at_once_hold_it_once(engine: Any, document: Prompt, source: random.Random, answer: Any) -> None:
    opening = some(source, 40) + document + some(source, 20)
    free = engine.pool.get_num_free_blocks()
    requests = [engine.add(opening, ANSWER) for _ in range(8)]
    least = free
    while engine.scheduler.has_requests() or engine.in_flight:
        engine.step()
        least = min(least, engine.pool.get_num_free_blocks())
    tails = 8 * (-(-ANSWER // 16) + 1)
    assert free - least <= -(-len(opening) // 16) + tails
    assert sum(computed(engine, request) for request in requests) < 400
    for request in requests:
        assert engine.answers[request.request_id] == answer(opening, ANSWER)
    engine.check_nothing_is_left()


def test_one_that_fails_is_shared_by_nobody(engine: Any, document: Prompt, source: random.Random, answer: Any) -> None:
    opening = some(source, 40) + document + some(source, 20)
    failures = iter([True, True])
    engine.worker.fails = lambda order: next(failures, False)
    requests = [engine.add(opening, ANSWER) for _ in range(4)]
    engine.finish()
    for request in requests:
        assert engine.answers[request.request_id] == answer(opening, ANSWER)
    engine.check_nothing_is_left()


def two_documents(engine: Any, source: random.Random) -> Callable[[], Prompt]:
    """Prompts that reuse the same in the same places, and differ between these."""
    first, second = some(source, 160), some(source, 480)
    for document in (first, second):
        engine.add(some(source, 24) + document + some(source, 20))
        engine.finish()
    opening = some(source, 48)
    engine.add(opening + some(source, 20), 2)  # Exact from now on.
    engine.finish()
    return lambda: opening + first + some(source, 20) + second + some(source, 20)


def test_what_landed_for_one_has_not_landed_for_another(engine: Any, source: random.Random, answer: Any) -> None:
    prompt = two_documents(engine, source)
    fine, failing = engine.add(prompt(), ANSWER), prompt()
    engine.schedule()
    requests = [engine.add(failing, ANSWER)]
    engine.worker.fails = lambda order: order.request_id == requests[0].request_id
    engine.schedule()
    requests.append(engine.add(failing, ANSWER))
    engine.update()
    engine.schedule()
    engine.finish()
    for request in (fine, *requests):
        assert engine.answers[request.request_id] == answer(request.prompt_token_ids, ANSWER)
    engine.check_nothing_is_left()


def test_a_preempted_one_finds_its_own_again(engine: Any, document: Prompt, source: random.Random, answer: Any) -> None:
    opening = some(source, 40) + document + some(source, 20)
    first = converse(engine, source, opening, 1)[0]
    second = engine.add(opening + engine.answers[first.request_id] + some(source, 15), ANSWER)
    for _ in range(4):
        engine.step()
    engine.preempt(second)
    engine.finish()
    assert engine.answers[second.request_id] == answer(second.prompt_token_ids, ANSWER)
    assert computed(engine, second) < 100
    engine.check_nothing_is_left()


def test_the_third_that_asks_makes_an_opening_exact(engine: Any, document: Prompt, source: random.Random) -> None:
    instruction = some(source, 40)
    opening = instruction + document
    for number in range(3):
        assert engine.side.provider.stats().background_tokens == 0, number
        ask(engine, opening + some(source, 20))
    stats = engine.side.provider.stats()
    assert stats.background_tokens >= 480 - 48
    plain = ask(engine, opening + some(source, 20), wish="off")
    assert computed(engine, plain) < 64
    fourth = ask(engine, opening + some(source, 20))
    assert fourth.request_id not in engine.worker.may_be_approximate
    assert engine.has_true_hashes(fourth)
    engine.check_nothing_is_left()


def test_a_conversation_that_goes_on_makes_nothing_exact(engine: Any, document: Prompt, source: random.Random) -> None:
    converse(engine, source, some(source, 40) + document + some(source, 20), 6)
    assert engine.side.provider.stats().background_tokens == 0


def test_the_background_steps_aside(engine: Any, document: Prompt, source: random.Random, answer: Any) -> None:
    opening = some(source, 40) + document
    for _ in range(2):
        ask(engine, opening + some(source, 20))
    third = engine.add(opening + some(source, 20), ANSWER)
    while not any(name.startswith("semblend-exact") for name in engine.scheduler.requests):
        engine.step()
    assert third.is_finished()
    piece = next(name for name in engine.scheduler.requests if name.startswith("semblend-exact"))
    late = engine.add(some(source, 50), 2)
    engine.finish()
    assert engine.computed[piece] == 0
    assert engine.answers[late.request_id] == answer(late.prompt_token_ids, 2)
    assert engine.side.provider.stats().background_tokens > 0, "it goes on when all are served"
    engine.check_nothing_is_left()


def test_a_paused_engine_computes_nothing_in_the_background(
    engine: Any, document: Prompt, source: random.Random
) -> None:
    from vllm.v1.core.sched.interface import PauseState

    opening = some(source, 40) + document
    for _ in range(2):
        ask(engine, opening + some(source, 20))
    engine.add(opening + some(source, 20), ANSWER)
    while len(engine.scheduler.requests):
        engine.scheduler.set_pause_state(PauseState.PAUSED_NEW if not engine.scheduler.waiting else PauseState.UNPAUSED)
        engine.step()
    assert engine.side.provider.stats().background_tokens == 0
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    ask(engine, some(source, 50))
    assert engine.side.provider.stats().background_tokens > 0
    engine.check_nothing_is_left()


def test_without_a_prefix_cache_nothing_is_computed_for_it(
    new_overlapping: Callable[..., Any], source: random.Random
) -> None:
    def without(config: Any) -> None:
        config.cache_config.enable_prefix_caching = False

    engine = new_overlapping(blocks=400, change=without)
    document = some(source, 480)
    ask(engine, some(source, 24) + document)
    opening = some(source, 40) + document
    for _ in range(4):
        ask(engine, opening + some(source, 20))
    assert engine.side.hot.next() is not None, "many asked for it"
    assert not any(name.startswith("semblend-") for name in engine.computed)
    engine.check_nothing_is_left()


def in_the_background(engine: Any, document: Prompt, source: random.Random) -> str:
    """Let a piece of a hot opening begin; the id it goes by."""
    opening = some(source, 40) + document
    for _ in range(3):
        engine.add(opening + some(source, 20), ANSWER)
        while not (pieces := [name for name in engine.scheduler.requests if name.startswith("semblend-exact")]):
            if not engine.scheduler.has_requests() and not engine.in_flight:
                break
            engine.step()
    (piece,) = pieces
    while not engine.computed[piece]:
        engine.step()
    return str(piece)


def test_a_piece_that_has_begun_steps_aside_too(engine: Any, document: Prompt, source: random.Random) -> None:
    """It takes more than a step, and who comes meanwhile would share the next ones with it."""
    piece = in_the_background(engine, document, source)
    so_far = engine.computed[piece]
    late = engine.add(some(source, 50), 2)
    while not engine.answers[late.request_id]:
        engine.step()
    assert engine.computed[piece] == so_far
    engine.finish()
    assert engine.side.provider.stats().background_tokens > 0, "it goes on when all are served"
    engine.check_nothing_is_left()


def test_the_background_is_in_no_resets_way(engine: Any, document: Prompt, source: random.Random) -> None:
    """vLLM does not empty a cache that somebody uses, and nobody does."""
    in_the_background(engine, document, source)
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    assert not engine.cached_blocks()
    engine.finish()
    assert not engine.cached_blocks(), "what was under way is not found either"
    engine.check_nothing_is_left()
