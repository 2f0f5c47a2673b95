"""A trace's request: what a serving system saw of it. JSON lines, one request a line."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sembench.laboratory.requests import CacheRequest, key_of
from semblend_core.eviction import START_WEIGHTS

TRACE_SCHEMA = "sembench.trace.v1"
MOST_TOKENS = 10**8
LATEST_MS = 1e15
Milliseconds = Annotated[float, Field(ge=0, le=LATEST_MS, allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=512)]


class TraceBlock(BaseModel):
    """A stretch of the prompt. Redaction drops ``text``; hash, type and count stay."""

    model_config = ConfigDict(extra="ignore")

    block_id: Name | None = None
    content_hash: Annotated[str, Field(min_length=1, max_length=512)]
    semantic_type: Annotated[str, Field(min_length=1, max_length=64)] = "other"
    token_count: int = Field(ge=1, le=MOST_TOKENS)
    text: str | None = None
    position: int | None = Field(default=None, ge=0, le=10**9)

    @property
    def kind(self) -> str:
        """One that policies know. Others count as ``other``: there may be as many of them as requests."""
        return self.semantic_type if self.semantic_type in START_WEIGHTS else "other"


class TraceRequest(BaseModel):
    """Unknown is null. Fields of other systems are passed over."""

    model_config = ConfigDict(extra="ignore")

    request_id: Annotated[str, Field(min_length=1, max_length=512)]
    timestamp_ms: Milliseconds = 0.0
    session_id: Name | None = None
    tenant_id: Name | None = None
    model_name: Name | None = None
    blocks: list[TraceBlock] = Field(min_length=1, max_length=10**6)
    observed_ttft_ms: Milliseconds | None = None
    observed_total_latency_ms: Milliseconds | None = None
    observed_prefix_hit_tokens: int | None = Field(default=None, ge=0, le=10**12)
    observed_prefill_tokens: int | None = Field(default=None, ge=0, le=10**12)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        """Where every block says its place, that counts: lines of CSV may come in any order."""
        places = [block.position for block in self.blocks if block.position is not None]
        if len(places) == len(self.blocks) and places != sorted(places):
            self.blocks.sort(key=lambda block: block.position or 0)
        return self

    def for_cache(self) -> CacheRequest:
        """Without text: what a simulated cache needs.

        Equal content has one size, so a hash that comes with another size stands for something else: a cache would
        otherwise serve more of it than it holds.
        """
        tenant, model = self.tenant_id or "", self.model_name or ""
        return CacheRequest(
            request_id=self.request_id,
            at_s=self.timestamp_ms / 1000,
            keys=tuple(key_of(f"{block.token_count}:{block.content_hash}", tenant, model) for block in self.blocks),
            tokens=tuple(block.token_count for block in self.blocks),
            kinds=tuple(block.kind for block in self.blocks),
            session_id=self.session_id or "",
            tenant_id=tenant,
            observed_ttft_ms=self.observed_ttft_ms,
            observed_prefill_tokens=self.observed_prefill_tokens,
            observed_prefix_hit_tokens=self.observed_prefix_hit_tokens,
        )

    def redacted(self) -> TraceRequest:
        return self.model_copy(update={"blocks": [block.model_copy(update={"text": None}) for block in self.blocks]})
