"""A pool that is full of approximate KV: what a step takes does not grow with the pool."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from semblend_core.testing import Lines

DOCUMENT = 480


def some(source: random.Random, length: int) -> list[int]:
    return [source.randrange(40_000) for _ in range(length)]


def lines_of_one_more(engine: Any, source: random.Random) -> int:
    """Of one more request that is served with reuse, once the pool was filled with such."""
    document = some(source, DOCUMENT)
    engine.add(some(source, 24) + document + some(source, 20))
    engine.finish()

    def ask() -> None:
        engine.add(some(source, 24) + document + some(source, 20))
        engine.finish()

    for _ in range(2 + len(engine.pool.blocks) // (DOCUMENT // 16)):
        ask()
    lines = Lines(apart_from=("paper_worker.py",))
    with lines.counted():
        ask()
    assert engine.side.provider.stats().confirmed_tokens
    return lines.count


def test_what_a_request_takes_does_not_grow_with_a_pool_full_of_approximate_kv(
    new_overlapping: Callable[..., Any],
) -> None:
    few, many = (lines_of_one_more(new_overlapping(blocks=blocks), random.Random(1)) for blocks in (200, 800))
    assert many <= 1.2 * few, (few, many)
