"""Who holds which donor now, and who has how much to do: asked of Dynamo's own KV router, never remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from semblend_dynamo.dynamo.requests import RoutedRequest
from semblend_dynamo.placement import Candidate


class WorkerRank(NamedTuple):
    """A worker's instance and its data-parallel rank: what Dynamo can send a request to."""

    worker_id: int
    dp_rank: int


class KvIndex(Protocol):
    """What is used of ``dynamo.llm.KvRouter``."""

    async def get_overlap_scores(self, token_ids: list[int], **options: Any) -> dict[str, Any]: ...

    async def get_potential_loads(self, token_ids: list[int], **options: Any) -> list[dict[str, int]]: ...


class Residency:
    def __init__(self, index: KvIndex, live_workers: Callable[[], Iterable[int]], block_size: int) -> None:
        """``live_workers``: instances that discovery lists now; the index may still know others."""
        self._index = index
        self._live_workers = live_workers
        self._block_size = block_size

    async def candidates(self, request: RoutedRequest) -> list[Candidate[WorkerRank]]:
        """Every live worker with its load and its exact prefix of this prompt."""
        hashing = _hashing(request)
        loads, exact = await asyncio.gather(
            self._index.get_potential_loads(request.token_list, **hashing),
            self._held(request.token_list, hashing),
        )
        live = set(self._live_workers())
        found = []
        for row in loads:
            worker = WorkerRank(row["worker_id"], row["dp_rank"])
            if worker.worker_id not in live:
                continue
            exact_tokens = min(exact.get(worker, 0), len(request.token_list))
            prefill = len(request.token_list) - exact_tokens
            # Dynamo counts the prefill it has queued there and this prompt's together; its decode load in blocks.
            queued = max(0, row["potential_prefill_tokens"] - prefill)
            load = queued + row["potential_decode_blocks"] * self._block_size
            found.append(Candidate(worker, load, prefill, exact_tokens))
        return found

    async def held(self, donors: Mapping[str, list[int]], request: RoutedRequest) -> dict[str, dict[WorkerRank, int]]:
        """For each donor, given by its tokens: how many of its leading tokens each live worker holds.

        A donor shares its request's tenant and adapter, so its blocks are hashed alike.
        """
        hashing = _hashing(request)
        rows = await asyncio.gather(*(self._held(tokens, hashing) for tokens in donors.values()))
        live = set(self._live_workers())
        return {
            donor_id: {worker: tokens for worker, tokens in row.items() if worker.worker_id in live}
            for donor_id, row in zip(donors, rows, strict=True)
        }

    async def _held(self, tokens: list[int], hashing: Mapping[str, Any]) -> dict[WorkerRank, int]:
        scores = await self._index.get_overlap_scores(tokens, include_shared=False, **hashing)
        held = {}
        for row in scores["workers"]:
            # The tiers tell how far each reaches; the longest is what the worker can load from.
            blocks = max(row["device_blocks"], row["host_pinned_blocks"], row["disk_blocks"])
            if blocks:
                held[WorkerRank(row["worker_id"], row["dp_rank"])] = blocks * self._block_size
        return held


def _hashing(request: RoutedRequest) -> dict[str, Any]:
    """What Dynamo mixes into the hashes of this request's blocks."""
    return {"cache_namespace": request.salt, "lora_name": request.adapter}
