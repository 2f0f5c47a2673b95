"""What routers hear of an engine's blocks is true of exact KV: by a subscriber of vLLM's own publisher."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

TEXT = " ".join(f"Room {n} has {n * 5 % 17 + 2} chairs and was let for {n * 9 % 70 + 20} crowns." for n in range(18))
DONOR = f"A hotel.\n\n{TEXT}\n\nQuestion: which is the largest?\nAnswer:"
INSTRUCTION = "Read what the hotel's ledger says of its rooms, and say nothing that is not in it. " * 4
RECIPIENT = f"{INSTRUCTION}\n\n{TEXT}\n\nQuestion: how many?\nAnswer:"

Heard = Callable[[], list[Any]]


@pytest.fixture
def heard(engine: Any) -> Iterator[Heard]:
    """The events since they were last asked for. The cache is empty at first, so that all of it is known."""
    import msgspec
    import zmq
    from vllm.distributed.kv_events import KVEventBatch

    publisher = engine.scheduler.kv_event_publisher
    subscriber = zmq.Context.instance().socket(zmq.SUB)
    subscriber.connect(engine.events_endpoint)
    subscriber.subscribe("")

    def until_the_mark() -> list[Any]:
        mark = time.time()
        publisher.publish(KVEventBatch(ts=mark, events=[]))
        events: list[Any] = []
        while subscriber.poll(10_000):
            batch = msgspec.msgpack.decode(subscriber.recv_multipart()[-1], type=KVEventBatch)
            if batch.ts == mark:
                return events
            events += batch.events
        raise AssertionError("the publisher is silent")

    assert engine.scheduler.reset_prefix_cache()
    until_the_mark()
    yield until_the_mark
    subscriber.close(linger=0)


def tokens_of(engine: Any, text: str) -> list[int]:
    return list(engine.llm.get_tokenizer().encode(text))


def cached(engine: Any) -> set[Any]:
    from vllm.v1.core.kv_cache_utils import get_block_hash, maybe_convert_block_hash

    blocks = engine.scheduler.kv_cache_manager.block_pool.blocks
    hashes = [get_block_hash(block.block_hash) for block in blocks if block.block_hash is not None]
    return set(map(maybe_convert_block_hash, hashes))


def test_approximate_blocks_are_not_announced(engine: Any, heard: Heard, new_router: Any) -> None:
    router, salt = new_router(), "announced"
    engine.ask(DONOR, salt=salt, tokens=1)
    engine.settle()
    router.hear(heard())
    assert router.held == cached(engine), "exact blocks are announced, all of them"

    before = engine.stats().confirmed_tokens
    reused = engine.ask(RECIPIENT, salt=salt, tokens=40)  # Generated blocks are approximate too.
    assert engine.stats().confirmed_tokens > before
    router.hear(heard())
    withheld = cached(engine) - router.held
    held = router.longest_prefix(tokens_of(engine, RECIPIENT))
    probe = engine.ask(RECIPIENT, salt=salt, reuse="off", tokens=1)
    assert 0 < held < reused.prompt_tokens
    assert held == probe.cached_tokens, "what a router believes is what a request finds"
    assert len(withheld) > (reused.prompt_tokens - held) // 32

    router.hear(heard())
    assert router.longest_prefix(tokens_of(engine, RECIPIENT)) == reused.prompt_tokens // 32 * 32
    assert cached(engine) - router.held == withheld


def test_nor_that_they_are_gone(engine: Any, heard: Heard, new_router: Any) -> None:
    router, salt = new_router(), "gone unheard"
    engine.ask(DONOR, salt=salt, tokens=1)
    engine.settle()
    engine.ask(RECIPIENT, salt=salt, tokens=40)
    router.hear(heard())
    assert len(cached(engine)) > len(router.held) > 0
    pool = engine.scheduler.kv_cache_manager.block_pool
    pool.evict_blocks({block.block_id for block in pool.blocks if block.block_hash is not None})
    engine.ask("Is anybody there?", salt=salt, tokens=1)  # Events are told after a step.
    router.hear(heard())
    assert not router.held
    assert router.unknown_removals == 0


def test_a_request_that_is_served_cold_after_all_is_announced(
    engine: Any, heard: Heard, new_router: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    router, salt = new_router(), "announced, cold"
    engine.ask(DONOR, salt=salt, tokens=1)
    engine.settle()
    with monkeypatch.context() as patched:
        patched.setattr(engine.worker._store, "acquire", lambda *_: None)
        answer = engine.ask(RECIPIENT, salt=salt)
    router.hear(heard())
    assert router.longest_prefix(tokens_of(engine, RECIPIENT)) == answer.prompt_tokens // 32 * 32
