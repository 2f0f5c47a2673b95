"""A load that looks like production: mixed requests, up to 64 in flight, SGLang with SemBlend and without in turns.

python benchmarks/production.py MODEL --real-weights --text ../../docs --tier balanced --json FILE
... --cpu --dtype float32 --context 2048 --longest 2000 --seconds 40 --in-flight 4 --warm-up 4    tries it out
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from _engine_under_test import Engine, add_engine_options, top_logprobs

from semblend_core.testing.benchmarks import Prompts, deliver, options_of, production


class StreamingSglang:
    def __init__(self, options: argparse.Namespace) -> None:
        self._engine = Engine(options)

    @property
    def name(self) -> str:
        return self._engine.name

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._engine.run(work)

    async def stream(
        self, prompt: list[int], *, salt: str, reuse: bool, output_tokens: int, top: int = 0
    ) -> AsyncIterator[production.Piece]:
        limits = {"salt": salt, "reuse": reuse, "output_tokens": output_tokens, "top": top}
        async for tokens, said in self._engine.pieces(prompt, **limits):
            yield production.Piece(tokens, said["cached_tokens"], top_logprobs(said))

    def close(self) -> None:
        self._engine.close()


def main() -> None:
    options = options_of(__doc__, add_engine_options, production.add_options)
    if options.arm is None:
        deliver(production.run(__file__, options), options)
        return
    options.stock = options.arm == "stock"
    prompts = Prompts.for_model(options.model, options.text, options.seed)
    result = production.run_arm(StreamingSglang(options), prompts, options)
    deliver(result, options, shown={"requests": len(result["timings"])})


if __name__ == "__main__":
    main()
