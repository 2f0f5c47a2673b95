"""What a request takes to its first token, given what a cache held of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sembench.laboratory.requests import CacheRequest
from sembench.schema import InputError, naming
from semblend_core.costs import Part, StepShape, StepTimes

BASE_MS = 80.0
TOKEN_MS = 0.08
_COSTS_SCHEMA = "semblend.costs.v2"


class LatencyModel(Protocol):
    def ttft_ms(self, cached: int, uncached: int) -> float:
        """The whole time to the first token of a prompt with so many tokens from the cache and so many computed."""
        ...

    def saved_ms(self, position: int, tokens: int) -> float:
        """Prefill time that a block of ``tokens`` at ``position`` is worth. A prompt's blocks add up."""
        ...

    @property
    def is_linear(self) -> bool:
        """Whether a token is worth the same everywhere, so that saving most tokens is saving most time."""
        ...

    def describe(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class LinearLatency:
    """``base + uncached tokens x token latency``: an estimate, no measurement of any GPU."""

    base_ms: float = BASE_MS
    token_ms: float = TOKEN_MS
    source: str = "default"

    is_linear = True

    def ttft_ms(self, cached: int, uncached: int) -> float:
        return self.base_ms + uncached * self.token_ms

    def saved_ms(self, position: int, tokens: int) -> float:
        return tokens * self.token_ms

    def describe(self) -> dict[str, Any]:
        return {"kind": "linear", "base_ms": self.base_ms, "token_ms": self.token_ms, "source": self.source}


class MeasuredLatency:
    """From what an engine's own steps were seen to take: a file of ``SEMBLEND_COST_DIR``."""

    is_linear = False

    def __init__(self, times: StepTimes, source: str, step_tokens: int = 8192) -> None:
        self._times = times
        self._source = source
        self._step_tokens = step_tokens
        self._token_ms = (times.cost("token") + times.cost("token_beyond_flat")) / 1000
        self._attention_ms = times.cost("attention") / 1000

    def ttft_ms(self, cached: int, uncached: int) -> float:
        parts = [
            Part(cached + done, min(self._step_tokens, uncached - done))
            for done in range(0, max(uncached, 1), self._step_tokens)
        ]
        return self._times.predict(StepShape.of([part]) for part in parts) / 1000

    def saved_ms(self, position: int, tokens: int) -> float:
        return tokens * (self._token_ms + self._attention_ms * (position + tokens / 2))

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "measured steps",
            "token_ms": self._token_ms,
            "attention_ms": self._attention_ms,
            "step_tokens": self._step_tokens,
            "source": self._source,
        }


def measured_latency(path: Path) -> MeasuredLatency:
    """Step costs that an engine with SemBlend learned and kept. Refused where it has not learned enough."""
    try:
        with naming(path):
            text = path.read_text(encoding="utf-8", errors="replace")
        kept = json.loads(text)
        if kept["schema"] != _COSTS_SCHEMA:
            raise ValueError(f"schema: expected {_COSTS_SCHEMA!r}, found {kept['schema']!r:.80}")
        times = StepTimes.from_json(kept["times"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: holds no step costs as SemBlend keeps them in SEMBLEND_COST_DIR: {error}") from None
    if not times.is_ready:
        raise InputError(f"{path}: too few prefills were timed; let the engine serve a few prompts first")
    return MeasuredLatency(times, path.name)


def calibrated_latency(requests: Iterable[CacheRequest]) -> LinearLatency:
    """Base and token latency by least squares, from what a trace observed. Neither is below 0."""
    points = [
        (request.observed_prefill_tokens, request.observed_ttft_ms)
        for request in requests
        if request.observed_ttft_ms is not None and request.observed_prefill_tokens is not None
    ]
    if len({tokens for tokens, _ in points}) < 2:
        raise InputError(
            "--calibrate-from-trace: needs observed_ttft_ms with observed_prefill_tokens on requests of at least two "
            f"different sizes; the trace has {len(points)} such requests. Leave the flag out to use the default model"
        )
    tokens, times = (np.array(values, np.float64) for values in zip(*points, strict=True))
    slope, base = np.polyfit(tokens, times, 1)
    if slope < 0:  # Times that fall with the prompt say nothing of its tokens.
        slope, base = 0.0, float(times.mean())
    elif base < 0:
        slope, base = float(tokens @ times / (tokens @ tokens)), 0.0
    return LinearLatency(float(base), float(slope), f"least squares over {len(points)} requests")
