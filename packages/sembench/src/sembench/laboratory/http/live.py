"""Caches that live as long as the server: each request goes to every policy's, and its blocks are kept for a trace."""

from __future__ import annotations

import threading
import time
from collections import deque

from sembench.laboratory.caches import SimulatedCache, make_cache, weights_of
from sembench.laboratory.config import CacheSettings
from sembench.laboratory.http.bodies import (
    CacheState,
    MetricsSummary,
    PolicySummary,
    ResidentBlock,
    ServedBlock,
    ServedBy,
    SimulatedAnswer,
    SimulatedRequest,
)
from sembench.laboratory.tally import Tally
from sembench.laboratory.trace_schema import TraceBlock, TraceRequest
from semblend_core.prompts import segment_request

MOST_TRACED = 1000
MOST_TRACED_BLOCKS = 100_000
"""Of all requests in the trace: a request may have thousands, and names of hundreds of characters for them."""
MOST_SHOWN = 500


class LiveCaches:
    """Safe to use from several threads."""

    def __init__(self, settings: CacheSettings) -> None:
        self.settings = settings
        self.latency = settings.latency.model()
        self._caches: dict[str, SimulatedCache] = {
            policy: make_cache(
                policy,
                settings.budget_tokens,
                semantics=settings.semantics,
                latency=self.latency,
                seam_tokens=settings.seam_tokens,
                min_span_tokens=settings.min_span_tokens,
            )
            for policy in settings.policies
        }
        for each in self._caches.values():
            each.tally.keeps_times = False
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._latest_s = 0.0
        self._trace: deque[TraceRequest] = deque()
        self._traced_blocks = 0
        self.requests = 0

    @property
    def policies(self) -> list[str]:
        return list(self._caches)

    def serve(self, request: SimulatedRequest) -> SimulatedAnswer:
        """Raises ValueError for a prompt that holds nothing to cache."""
        traced = self._traced(request)
        asked = traced.for_cache()
        with self._lock:
            # Policies need a clock that never goes back, whatever clients send.
            self._latest_s = asked.at_s = max(self._latest_s, asked.at_s)
            served = {policy: cache.serve(asked) for policy, cache in self._caches.items()}
            self._note(traced)
            self.requests += 1
        return SimulatedAnswer(
            request_id=request.request_id,
            prompt_tokens=asked.total_tokens,
            blocks=[ServedBlock(**block.model_dump(include=set(ServedBlock.model_fields))) for block in traced.blocks],
            policies=[
                ServedBy(
                    policy=policy,
                    cached_tokens=each.cached_tokens,
                    uncached_tokens=each.uncached_tokens,
                    block_hits=each.block_hits,
                    estimated_ttft_ms=each.ttft_ms,
                    cold_ttft_ms=each.cold_ttft_ms,
                )
                for policy, each in served.items()
            ],
        )

    def state(self, policy: str) -> CacheState:
        with self._lock:
            cache = self._caches[policy]
            entries = list(cache.policy.entries.items())
            weights = weights_of(cache.policy)
            return CacheState(
                policy=policy,
                semantics=cache.semantics,
                budget_tokens=cache.budget,
                held_tokens=cache.policy.held,
                resident_blocks=len(entries),
                evictions=cache.tally.evictions,
                weights=None if weights is None else dict(weights),
                blocks=[
                    ResidentBlock(key=f"{key}", semantic_type=entry.kind, tokens=entry.tokens)
                    for key, entry in entries[:MOST_SHOWN]
                ],
            )

    def tally(self, policy: str) -> Tally:
        return self._caches[policy].tally

    def summary(self) -> MetricsSummary:
        with self._lock:
            return MetricsSummary(
                semantics=self.settings.semantics,
                budget_tokens=self.settings.budget_tokens,
                latency=self.latency.describe(),
                policies=[_summary(policy, cache) for policy, cache in self._caches.items()],
            )

    def trace(self, most: int) -> list[TraceRequest]:
        """The last requests, oldest first, without texts."""
        with self._lock:
            return list(self._trace)[-most:]

    def _note(self, traced: TraceRequest) -> None:
        self._trace.append(traced)
        self._traced_blocks += len(traced.blocks)
        while len(self._trace) > MOST_TRACED or self._traced_blocks > MOST_TRACED_BLOCKS:
            self._traced_blocks -= len(self._trace.popleft().blocks)

    def _traced(self, request: SimulatedRequest) -> TraceRequest:
        blocks = request.blocks or _cut(request)
        at_ms = request.timestamp_ms
        return TraceRequest(
            request_id=request.request_id,
            timestamp_ms=round((time.monotonic() - self._began) * 1000, 3) if at_ms is None else at_ms,
            session_id=request.session_id,
            tenant_id=request.tenant_id,
            model_name=request.model_name,
            blocks=[block.model_copy(update={"text": None}) for block in blocks],
        )


def _cut(request: SimulatedRequest) -> list[TraceBlock]:
    body = request.model_dump(include={"messages", "prompt"}, exclude_none=True)
    found = [block for block in segment_request(body) if block.tokens]
    if not found:
        raise ValueError("messages: hold no text that could be cached")
    return [
        TraceBlock(
            content_hash=block.content_hash,
            semantic_type=str(block.kind or block.type),
            token_count=block.tokens,
            position=block.position,
        )
        for block in found
    ]


def _summary(policy: str, cache: SimulatedCache) -> PolicySummary:
    tally = cache.tally
    return PolicySummary(
        policy=policy,
        requests=tally.requests,
        hit_ratio=tally.hit_ratio,
        byte_ratio=tally.byte_ratio,
        compute_saved=tally.compute_saved,
        avg_ttft_ms=tally.mean_ttft_ms,
        tokens_saved=tally.cached_tokens,
        evictions=tally.evictions,
        evictions_by_type=dict(tally.evictions_by_type),
        regrets=tally.regrets,
    )
