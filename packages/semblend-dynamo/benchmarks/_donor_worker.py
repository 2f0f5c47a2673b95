"""A worker of the benchmark: it publishes the KV events of its donors, and serves nothing.

python _donor_worker.py NUMBER WORKERS DONORS TOKENS
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvloop
from _prompts import BLOCK, donor
from dynamo.llm import KvEventPublisher, ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime, dynamo_worker

NUMBER, WORKERS, DONORS, TOKENS = map(int, sys.argv[1:5])


async def nothing(request: Any, context: Any) -> AsyncIterator[dict[str, Any]]:
    yield {"token_ids": [1], "finish_reason": "stop"}


async def publish(publisher: KvEventPublisher) -> None:
    for number in range(NUMBER, DONORS, WORKERS):
        tokens = donor(number, TOKENS)
        blocks = len(tokens) // BLOCK
        hashes = [((number * 1_000_003 + block) * WORKERS + NUMBER) & 0x7FFFFFFFFFFFFFFF for block in range(blocks)]
        publisher.publish_stored(tokens[: blocks * BLOCK].tolist(), [BLOCK] * blocks, hashes)
        await asyncio.sleep(0)


@dynamo_worker()
async def main(runtime: DistributedRuntime) -> None:
    endpoint = runtime.endpoint("workers.backend.generate")
    config = ModelRuntimeConfig()
    config.total_kv_blocks = DONORS * TOKENS // BLOCK
    await register_model(
        ModelInput.Tokens,
        ModelType.Chat,
        endpoint,
        "benchmark",
        "benchmark",
        kv_cache_block_size=BLOCK,
        runtime_config=config,
        worker_type=WorkerType.Aggregated,
        skip_model_assets=True,
    )
    publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK, enable_local_indexer=True)
    task = asyncio.ensure_future(publish(publisher))
    await endpoint.serve_endpoint(nothing, graceful_shutdown=False)
    await task


if __name__ == "__main__":
    uvloop.run(main())
