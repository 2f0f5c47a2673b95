"""A real SGLang that streams, stock or with SemBlend."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from _engine_under_test import Engine, top_logprobs

from semblend_core.testing.benchmarks import Piece


class StreamingSglang:
    def __init__(self, options: argparse.Namespace) -> None:
        self._engine = Engine(options)
        self.name, self.kv_tokens, self.close = self._engine.name, self._engine.kv_tokens, self._engine.close

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._engine.run(work)

    async def stream(
        self, prompt: list[int], *, salt: str, wish: Any, output_tokens: int, top: int = 0
    ) -> AsyncIterator[Piece]:
        limits = {"salt": salt, "wish": wish, "output_tokens": output_tokens, "top": top}
        async for tokens, said in self._engine.pieces(prompt, **limits):
            yield Piece(tokens, said["cached_tokens"], top_logprobs(said))
