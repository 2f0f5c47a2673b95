"""What the laboratory's HTTP interface takes and gives."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sembench.laboratory.caches import Semantics
from sembench.laboratory.results import PolicyFigures
from sembench.laboratory.trace_schema import Milliseconds, Name, TraceBlock

MOST_REQUESTS = 2000
MOST_SEEDS = 20
MOST_BLOCKS = 5000
PolicyNames = Annotated[list[Annotated[str, Field(max_length=80)]], Field(min_length=1, max_length=40)]


class Message(BaseModel):
    """As OpenAI's; other fields are passed over."""

    model_config = ConfigDict(extra="allow")

    role: str = Field(max_length=64)
    content: str | list[dict[str, Any]] | None = None


class SimulatedRequest(BaseModel):
    """A prompt: messages, text, or blocks that somebody has cut already. One of the three."""

    model_config = ConfigDict(extra="ignore")

    request_id: Annotated[str, Field(min_length=1, max_length=200)]
    session_id: Name | None = None
    tenant_id: Name | None = None
    model_name: Name | None = None
    timestamp_ms: Milliseconds | None = Field(default=None, description="Of your clock. Left out: this server's.")
    messages: list[Message] | None = Field(default=None, min_length=1, max_length=MOST_BLOCKS)
    prompt: str | None = Field(default=None, min_length=1)
    blocks: list[TraceBlock] | None = Field(default=None, min_length=1, max_length=MOST_BLOCKS)

    @model_validator(mode="after")
    def _one_prompt(self) -> SimulatedRequest:
        if sum(given is not None for given in (self.messages, self.prompt, self.blocks)) != 1:
            raise ValueError("give messages, prompt or blocks, one of them")
        return self


class ServedBlock(BaseModel):
    content_hash: str
    semantic_type: str
    token_count: int


class ServedBy(BaseModel):
    """How one policy's cache served it. The time is a simulated estimate."""

    policy: str
    cached_tokens: int
    uncached_tokens: int
    block_hits: int
    estimated_ttft_ms: float
    cold_ttft_ms: float


class SimulatedAnswer(BaseModel):
    request_id: str
    prompt_tokens: int
    blocks: list[ServedBlock]
    policies: list[ServedBy]


class ResidentBlock(BaseModel):
    key: str
    semantic_type: str
    tokens: int


class CacheState(BaseModel):
    """One policy's cache as it is now; the first blocks only, where it holds many."""

    policy: str
    semantics: Semantics
    budget_tokens: int
    held_tokens: int
    resident_blocks: int
    evictions: int
    weights: dict[str, float] | None = Field(description="Of a policy that learns.")
    blocks: list[ResidentBlock]


class PolicySummary(BaseModel):
    policy: str
    requests: int
    hit_ratio: float | None
    byte_ratio: float | None
    compute_saved: float | None
    avg_ttft_ms: float | None
    tokens_saved: int
    evictions: int
    evictions_by_type: dict[str, int]
    regrets: int


class MetricsSummary(BaseModel):
    """Since the server started. Nothing was served: null, not 0."""

    semantics: Semantics
    budget_tokens: int
    latency: dict[str, Any]
    policies: list[PolicySummary]


class RunOrder(BaseModel):
    """One of the shipped experiments, with changes."""

    model_config = ConfigDict(extra="forbid")

    experiment: str = Field(max_length=80, description="A name that GET /v1/experiments lists.")
    seeds: int = Field(default=3, ge=1, le=MOST_SEEDS)
    requests: int | None = Field(default=None, ge=1, le=MOST_REQUESTS)
    cache_token_budget: int | None = Field(default=None, ge=1, le=10**9)
    semantics: Semantics | None = None
    policies: PolicyNames | None = None


class RunDone(BaseModel):
    run: str
    """The folder that was written."""
    summary: str
    """In Markdown."""
    figures: list[str]
    """Where the pictures are."""
    policies: list[PolicyFigures]
    belady: PolicyFigures


class ShippedExperiment(BaseModel):
    name: str
    description: str
    semantics: Semantics
    cache_token_budget: int
    requests: int
    policies: list[str]


class Health(BaseModel):
    status: str
    version: str
    policies: list[str]
    requests: int


class Problem(BaseModel):
    """Why a request was refused: one line for each thing that is wrong."""

    detail: list[str]
