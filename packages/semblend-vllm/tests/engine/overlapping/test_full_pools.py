"""A pool that is full of approximate KV: what a step takes does not grow with the pool."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

DOCUMENT = 480


class Lines:
    """Executed lines of Python, each turn of a loop counted: the same on every machine."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._frame)
        try:
            yield
        finally:
            sys.settrace(before)

    def _frame(self, frame: FrameType, event: str, argument: object) -> Any:
        return None if frame.f_code.co_filename.endswith("paper_worker.py") else self._line

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        self.count += event == "line"
        return self._line


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
    lines = Lines()
    with lines.counted():
        ask()
    assert engine.side.provider.stats().confirmed_tokens
    return lines.count


def test_what_a_request_takes_does_not_grow_with_a_pool_full_of_approximate_kv(
    new_overlapping: Callable[..., Any],
) -> None:
    lines = []
    for blocks in (200, 800):
        engine, source = new_overlapping(blocks=blocks), random.Random(1)
        lines.append(lines_of_one_more(engine, source))
    assert lines[1] <= 1.2 * lines[0], lines
