"""Collects traces: wraps whatever answers requests, and writes down what was asked and how long it took.

Observation only: nothing here decides what a back end keeps.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from sembench.exit_codes import REFUSED_OUTSIDE
from sembench.laboratory.caches import make_cache
from sembench.laboratory.latency import LinearLatency
from sembench.laboratory.requests import CacheRequest
from sembench.laboratory.trace_schema import TraceBlock, TraceRequest
from sembench.laboratory.workloads import generate
from sembench.laboratory.workloads.texts import messages_of
from sembench.live.endpoint import Endpoint, ServerRequest
from sembench.live.streaming import RequestFailedError
from sembench.schema import InputError, read_jsonl
from semblend_core.prompts import segment_request

MOCK_CACHE_TOKENS = 20_000
NOISE = 0.05
TOKENS_A_SECOND = 40.0


class Prompt(BaseModel):
    """A request to send: an OpenAI body, with who sends it."""

    model_config = ConfigDict(extra="allow")

    messages: list[dict[str, Any]] | None = Field(default=None, min_length=1)
    prompt: str | None = Field(default=None, min_length=1)
    session_id: str = Field(default="", max_length=200)
    tenant_id: str = Field(default="", max_length=200)

    @property
    def body(self) -> dict[str, Any]:
        return {"prompt": self.prompt} if self.messages is None else {"messages": self.messages}


@dataclass(frozen=True)
class Observed:
    """What one request took. Unknown is None."""

    ttft_ms: float | None
    total_ms: float | None
    prompt_tokens: int | None = None
    prefix_hit_tokens: int | None = None


class BackEnd(Protocol):
    async def answer(self, prompt: Prompt, request: TraceRequest) -> Observed: ...

    def clock_ms(self) -> float:
        """Milliseconds since it began."""
        ...


class MockBackEnd:
    """Answers nothing, at once: times come from a simulated LRU prefix cache with a little seeded noise."""

    def __init__(self, seed: int = 0, cache_tokens: int = MOCK_CACHE_TOKENS) -> None:
        self._cache = make_cache("lru", cache_tokens, semantics="prefix", latency=LinearLatency())
        self._dice = random.Random(seed)
        self._now_ms = 0.0

    async def answer(self, prompt: Prompt, request: TraceRequest) -> Observed:
        served = self._cache.serve(request.for_cache())
        ttft = served.ttft_ms * self._dice.uniform(1 - NOISE, 1 + NOISE)
        total = ttft + 1000 * self._dice.randint(20, 120) / TOKENS_A_SECOND
        self._now_ms += self._dice.expovariate(1 / 2000)
        return Observed(round(ttft, 3), round(total, 3), served.prompt_tokens, served.cached_tokens)

    def clock_ms(self) -> float:
        return round(self._now_ms, 3)


class LiveBackEnd:
    """A server with OpenAI's API; times are measured here, from sending a request."""

    def __init__(self, chat: Endpoint, completion: Endpoint, max_tokens: int) -> None:
        self._chat = chat
        self._completion = completion
        self._max_tokens = max_tokens
        self._began = time.monotonic()

    async def answer(self, prompt: Prompt, request: TraceRequest) -> Observed:
        endpoint = self._completion if prompt.messages is None else self._chat
        sent = ServerRequest(
            text=prompt.prompt or "",
            request_id=request.request_id,
            session_id=prompt.session_id,
            max_tokens=self._max_tokens,
            salt=prompt.tenant_id or None,
            extra=prompt.body,
        )
        reply = await endpoint.ask(sent)
        return Observed(reply.ttft_ms, reply.latency_ms, reply.prompt_tokens, reply.cached_tokens)

    def clock_ms(self) -> float:
        return round((time.monotonic() - self._began) * 1000, 3)


async def collect(
    prompts: Iterable[Prompt], back_end: BackEnd, *, model: str, redact: bool, name: str
) -> AsyncIterator[TraceRequest]:
    """One request after the other. A prompt that is not understood, or a back end that fails, ends the collection."""
    for number, prompt in enumerate(prompts):
        request = TraceRequest(
            request_id=f"{name}-{number:06d}",
            timestamp_ms=back_end.clock_ms(),
            session_id=prompt.session_id or None,
            tenant_id=prompt.tenant_id or None,
            model_name=model or None,
            blocks=_blocks(prompt, number),
        )
        try:
            observed = await back_end.answer(prompt, request)
        except RequestFailedError as error:
            raise InputError(f"request {number + 1}: {error}", REFUSED_OUTSIDE) from None
        known = request.redacted() if redact else request
        yield known.model_copy(update=_fields(observed))


def prompts_of_workload(workload: str, requests: int, seed: int) -> list[Prompt]:
    return [_prompt(request) for request in generate(workload, requests, seed)]


def prompts_of_file(path: Path) -> list[Prompt]:
    prompts = list(read_jsonl(path, Prompt))
    for number, prompt in enumerate(prompts, 1):
        if (prompt.messages is None) == (prompt.prompt is None):
            raise InputError(f"{path}: request {number}: give `messages` or `prompt`, one of them")
    if not prompts:
        raise InputError(f"{path}: holds no requests")
    return prompts


def _prompt(request: CacheRequest) -> Prompt:
    return Prompt(messages=messages_of(request), session_id=request.session_id)


def _blocks(prompt: Prompt, number: int) -> list[TraceBlock]:
    found = [block for block in segment_request(prompt.body) if block.tokens]
    if not found:
        raise InputError(f"request {number + 1}: holds no text that could be cached")
    return [
        TraceBlock(
            block_id=f"b{block.position}",
            content_hash=block.content_hash,
            semantic_type=str(block.kind or block.type),
            token_count=block.tokens,
            text=block.text,
            position=block.position,
        )
        for block in found
    ]


def _fields(observed: Observed) -> Mapping[str, Any]:
    """The prefill is what the server counted and did not find; where it does not say what it found, not known."""
    both = observed.prompt_tokens is not None and observed.prefix_hit_tokens is not None
    prefill = (observed.prompt_tokens or 0) - (observed.prefix_hit_tokens or 0) if both else None
    return {
        "observed_ttft_ms": observed.ttft_ms,
        "observed_total_latency_ms": observed.total_ms,
        "observed_prefix_hit_tokens": observed.prefix_hit_tokens,
        "observed_prefill_tokens": prefill,
    }
