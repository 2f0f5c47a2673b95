"""A pool that is full of approximate KV: what a round takes does not grow with the pool."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from semblend_core.testing import Lines

DOCUMENT = 480


def some(source: random.Random, length: int) -> list[int]:
    return [source.randrange(1000, 40_000) for _ in range(length)]


def lines_of_one_more(rig: Any, source: random.Random) -> int:
    """Of one more request that is served with reuse, once the pool was filled with such."""
    document = some(source, DOCUMENT)
    rig.serve(some(source, 24) + document + some(source, 20), "donor")

    def ask(name: str) -> None:
        rig.serve(some(source, 24) + document + some(source, 20), name)

    for number in range(2 + rig.slots // DOCUMENT):
        ask(f"request-{number}")
    before, lines = rig.side.provider.stats().confirmed_tokens, Lines(apart_from=("rig.py", "toy_model.py"))
    with lines.counted():
        ask("one more")
    assert rig.side.provider.stats().confirmed_tokens > before
    return lines.count


@pytest.mark.parametrize("core", ["python", "rust"])
def test_what_a_request_takes_does_not_grow_with_a_pool_full_of_approximate_kv(
    new_rig: Callable[..., Any], core: str
) -> None:
    few, many = (lines_of_one_more(new_rig(slots=slots, core=core), random.Random(1)) for slots in (4_000, 16_000))
    assert many <= 1.2 * few, (few, many)
