"""A mock worker that says who it is and what reached it, and publishes KV events as an engine does.

    python telling_worker.py NAME MODEL_FOLDER

``TELLING_BLOCKS``: blocks of a prompt that it keeps, all by default: an engine may have evicted the rest.
``TELLING_GATE``: a file. While it does not exist, answers stop after ``OPENING`` parts and wait for it. A part is a
token; behind the last one comes a part that only says so, as Dynamo's own mock workers send it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvloop
from dynamo.llm import KvEventPublisher, ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime, dynamo_worker
from letters import FIRST_LETTER, LETTERS, OPENING

BLOCK = 16
NAME, MODEL = sys.argv[1], sys.argv[2]
KEPT_BLOCKS = int(os.environ.get("TELLING_BLOCKS", "1000000"))
GATE = Path(os.environ["TELLING_GATE"]) if "TELLING_GATE" in os.environ else None


class TellingWorker:
    def __init__(self, publisher: KvEventPublisher) -> None:
        self._publisher = publisher
        self._kept: set[tuple[str | None, tuple[int, ...]]] = set()

    async def generate(self, request: dict[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
        salt = (request.get("routing") or {}).get("cache_salt")
        self._keep(list(request["token_ids"]), salt)
        said = {"who": NAME, "semblend_evidence": (request.get("extra_args") or {}).get("semblend")}
        position, wanted = len(request["token_ids"]), request["stop_conditions"]["max_tokens"]
        for number in range(wanted):
            await self._pass_gate(number)
            yield {"token_ids": [FIRST_LETTER + (position + number) % len(LETTERS)], "engine_data": said}
        await self._pass_gate(wanted)
        yield {"token_ids": [], "engine_data": said, "finish_reason": "length"}
        await self._pass_gate(wanted + 1)

    async def _pass_gate(self, parts: int) -> None:
        while parts == OPENING and GATE and not GATE.exists():
            await asyncio.sleep(0.01)

    def _keep(self, tokens: list[int], salt: str | None) -> None:
        blocks = min(len(tokens) // BLOCK, KEPT_BLOCKS)
        prefix = tuple(tokens[: blocks * BLOCK])
        if not blocks or (salt, prefix) in self._kept:
            return
        self._kept.add((salt, prefix))
        hashes = [hash((salt, prefix[: (n + 1) * BLOCK])) & 0x7FFFFFFFFFFFFFFF for n in range(blocks)]
        self._publisher.publish_stored(list(prefix), [BLOCK] * blocks, hashes, cache_salt=salt)


@dynamo_worker()
async def main(runtime: DistributedRuntime) -> None:
    endpoint = runtime.endpoint("workers.backend.generate")
    config = ModelRuntimeConfig()
    config.total_kv_blocks, config.max_num_seqs, config.max_num_batched_tokens = 16384, 64, 8192
    config.taints = {f"test.worker/{NAME}", "test.pool/all"}
    await register_model(
        ModelInput.Tokens,
        ModelType.Chat | ModelType.Completions,
        endpoint,
        MODEL,
        "toy",
        kv_cache_block_size=BLOCK,
        runtime_config=config,
        worker_type=WorkerType.Aggregated,
    )
    publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK, enable_local_indexer=True)
    await endpoint.serve_endpoint(TellingWorker(publisher).generate, graceful_shutdown=True)


if __name__ == "__main__":
    uvloop.run(main())
