"""What a simulated cache did, counted as it goes. Per request it keeps one number, or none."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

Point = TypeVar("Point")


@dataclass(frozen=True, slots=True)
class Served:
    """One request, as the cache served it."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    blocks: int
    block_hits: int
    saved_ms: float
    """Prefill time that the hit blocks were worth."""
    full_ms: float
    """What all of the prompt's blocks are worth."""
    ttft_ms: float
    cold_ttft_ms: float

    @property
    def uncached_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens


class Series(Generic[Point]):
    """Values over the requests, thinned out evenly as they become many."""

    MOST = 256

    def __init__(self) -> None:
        self.points: list[tuple[int, Point]] = []
        self._stride = 1
        self._seen = 0

    def add(self, value: Point) -> None:
        if self._seen % self._stride == 0:
            self.points.append((self._seen, value))
            if len(self.points) >= self.MOST:
                self.points = self.points[::2]
                self._stride *= 2
        self._seen += 1

    @property
    def wants_next(self) -> bool:
        """Whether the next value would be kept: computing one may cost something."""
        return self._seen % self._stride == 0

    def skip(self) -> None:
        self._seen += 1


@dataclass
class Tally:
    requests: int = 0
    blocks: int = 0
    block_hits: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    saved_ms: float = 0.0
    full_ms: float = 0.0
    seam_tokens: int = 0
    refused: int = 0
    """Blocks that did not come in: larger than the budget, or not worth a place."""
    evictions: int = 0
    evicted_tokens: int = 0
    evictions_by_type: Counter[str] = field(default_factory=Counter)
    regrets: int = 0
    """Blocks wanted again soon after they had gone for want of room."""
    resident_blocks_max: int = 0
    remembered_blocks_max: int = 0
    keeps_times: bool = True
    """False where requests never end: there are no percentiles then."""
    ttfts: array[float] = field(default_factory=lambda: array("d"))
    ttft_sum: float = 0.0
    cold_ttft_sum: float = 0.0
    utilization: Series[float] = field(default_factory=Series)
    weights: Series[dict[str, float]] = field(default_factory=Series)

    def add(self, served: Served) -> None:
        self.requests += 1
        self.blocks += served.blocks
        self.block_hits += served.block_hits
        self.prompt_tokens += served.prompt_tokens
        self.cached_tokens += served.cached_tokens
        self.saved_ms += served.saved_ms
        self.full_ms += served.full_ms
        self.ttft_sum += served.ttft_ms
        if self.keeps_times:
            self.ttfts.append(served.ttft_ms)
        self.cold_ttft_sum += served.cold_ttft_ms

    @property
    def hit_ratio(self) -> float | None:
        return self.block_hits / self.blocks if self.blocks else None

    @property
    def byte_ratio(self) -> float | None:
        """Tokens from the cache among all: with one model, every token is as many bytes of KV."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def compute_saved(self) -> float | None:
        return self.saved_ms / self.full_ms if self.full_ms else None

    @property
    def mean_ttft_ms(self) -> float | None:
        return self.ttft_sum / self.requests if self.requests else None

    def ttft_percentile(self, percent: float) -> float | None:
        return float(np.percentile(self.ttfts, percent)) if self.ttfts else None
