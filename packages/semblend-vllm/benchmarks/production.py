"""A load that looks like production: mixed requests, up to 64 in flight, vLLM with SemBlend and without in turns.

VLLM_USE_FLASHINFER_SAMPLER=0 python benchmarks/production.py MODEL --real-weights --text ../../docs \
    --tier balanced --graphs --json FILE
... --cpu --dtype float32 --context 2048 --longest 2000 --seconds 40 --in-flight 4 --warm-up 4    tries it out

vLLM runs as in a server: its scheduler is a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from _engine_under_test import add_engine_options, asking, engine_arguments

from semblend_core.testing.benchmarks import Prompts, deliver, options_of, production


class StreamingVllm:
    def __init__(self, options: argparse.Namespace) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.async_llm import AsyncLLM

        self._new_tokens_only, self._served = RequestOutputKind.DELTA, 0
        self._loop = asyncio.new_event_loop()
        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_arguments(options)))

    @property
    def name(self) -> str:
        from vllm import __version__

        return f"vLLM {__version__}"

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    async def stream(
        self, prompt: list[int], *, salt: str, reuse: bool, output_tokens: int, top: int = 0
    ) -> AsyncIterator[production.Piece]:
        self._served += 1
        sampling = asking(output_tokens, "on" if reuse else "off", top)
        sampling.output_kind = self._new_tokens_only
        asked = {"prompt_token_ids": prompt, "cache_salt": salt}
        async for output in self._llm.generate(asked, sampling, f"production-{self._served}"):
            new = output.outputs[0]
            steps = tuple({token: each.logprob for token, each in step.items()} for step in new.logprobs or ())
            yield production.Piece(tuple(new.token_ids), output.num_cached_tokens or 0, steps)

    def close(self) -> None:
        self._llm.shutdown()


def main() -> None:
    options = options_of(__doc__, add_engine_options, production.add_options)
    if options.arm is None:
        deliver(production.run(__file__, options), options)
        return
    # Stock and SemBlend have the same scheduler's process, unlike in the other benchmarks.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    options.stock = options.arm == "stock"
    prompts = Prompts.for_model(options.model, options.text, options.seed)
    result = production.run_arm(StreamingVllm(options), prompts, options)
    deliver(result, options, shown={"requests": len(result["timings"])})


if __name__ == "__main__":
    main()
