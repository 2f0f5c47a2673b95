"""What stands for engines where it is tested how the benchmarks ask and judge them."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from semblend_core.testing.benchmarks.streaming import Piece


class StreamingStub:
    """Answers each token in a piece of its own. With SemBlend it is twice as slow."""

    name = "stub"

    def __init__(self, options: argparse.Namespace) -> None:
        self.most, self.under_way, self.prompts = 0, 0, list[list[int]]()
        self.kv_tokens = options.kv_tokens or 1000
        self._seconds = 0.002 if options.stock else 0.004

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)

    async def stream(
        self, prompt: list[int], *, salt: str, wish: Any, output_tokens: int, top: int = 0
    ) -> AsyncIterator[Piece]:
        self.prompts.append(prompt)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        for token in range(output_tokens):
            await asyncio.sleep(self._seconds)
            if prompt == [13]:
                raise ValueError("unlucky")
            yield Piece((token,), len(salt), ({1: -0.1, 2: -3.0},))
        self.under_way -= 1

    def close(self) -> None: ...


class EchoEngine:
    name = "echo"

    def __init__(self, options: argparse.Namespace) -> None:
        self.is_stock = options.stock
        self.kv_tokens = 60 if options.short_of_memory and not options.stock else options.kv_tokens or 77

    def close(self) -> None: ...


class Echo:
    def __init__(self, engine: EchoEngine, options: argparse.Namespace) -> None:
        self._engine = engine

    def __call__(self, asked: Any) -> Any:
        if asked == "raise" and not self._engine.is_stock:
            raise ValueError("the stub's own words")
        if asked == "exit":
            os._exit(3)
        return self._engine.is_stock, self._engine.kv_tokens, asked, os.getpid()
