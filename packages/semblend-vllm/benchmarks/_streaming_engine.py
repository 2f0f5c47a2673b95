"""A real vLLM that streams, stock or with SemBlend. Its scheduler is a process of its own, as in a server."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from _engine_under_test import asking, engine_arguments

from semblend_core.testing.benchmarks import Piece


class StreamingVllm:
    def __init__(self, options: argparse.Namespace) -> None:
        # The other benchmarks look into the scheduler, and have it in their own process.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.async_llm import AsyncLLM

        self._new_tokens_only, self._served, self._is_stock = RequestOutputKind.DELTA, 0, options.stock
        self._loop = asyncio.new_event_loop()
        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_arguments(options)))

    @property
    def name(self) -> str:
        from vllm import __version__

        return f"vLLM {__version__}"

    @property
    def kv_tokens(self) -> int:
        cache = self._llm.vllm_config.cache_config
        return int(cache.num_gpu_blocks * cache.block_size)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    async def stream(
        self, prompt: list[int], *, salt: str, wish: Any, output_tokens: int, top: int = 0
    ) -> AsyncIterator[Piece]:
        self._served += 1
        sampling = asking(output_tokens, None if self._is_stock else wish, top)
        sampling.output_kind = self._new_tokens_only
        asked = {"prompt_token_ids": prompt, "cache_salt": salt}
        async for output in self._llm.generate(asked, sampling, f"streamed-{self._served}"):
            new = output.outputs[0]
            steps = tuple({token: each.logprob for token, each in step.items()} for step in new.logprobs or ())
            yield Piece(tuple(new.token_ids), output.num_cached_tokens or 0, steps)

    def close(self) -> None:
        self._llm.shutdown()
        del self._llm  # Or it shuts down again as Python ends, and finds half of its modules gone.
