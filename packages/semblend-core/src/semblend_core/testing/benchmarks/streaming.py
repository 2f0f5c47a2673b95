"""Clients of a streaming engine: so many requests at a time, and when each piece of an answer came."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from semblend_core.testing.benchmarks.paired import RESAMPLES, Interval
from semblend_core.testing.benchmarks.traffic import Asked

FIGURES = {"ttft_p50_ms": 50, "ttft_p95_ms": 95, "ttft_p99_ms": 99, "inter_token_p99_ms": 99}
LEAST_BEYOND = 5
"""Values beyond a percentile, in all runs: with fewer it is not known well enough to be compared."""


@dataclass(frozen=True)
class Piece:
    tokens: tuple[int, ...]
    cached_tokens: int
    top: tuple[dict[int, float], ...] = ()


class StreamingEngine(Protocol):
    """A real engine, its scheduler in a process of its own as in a server."""

    @property
    def name(self) -> str: ...

    @property
    def kv_tokens(self) -> int:
        """What its cache has room for."""

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """On the engine's event loop."""

    def stream(
        self, prompt: list[int], *, salt: str, wish: Any, output_tokens: int, top: int = 0
    ) -> AsyncIterator[Piece]:
        """``wish``: what the request says to SemBlend."""

    def close(self) -> None: ...


@dataclass
class Timing:
    kind: str
    prompt_tokens: int
    ttft_ms: float | None = None
    gaps_ms: list[float] = field(default_factory=list)
    cached_tokens: int = 0
    ended_s: float | None = None
    """Since the clock was started. None: it failed."""


class Clients:
    """All those of one tenant. A conversation goes on with whatever it was answered."""

    def __init__(self, engine: StreamingEngine, salt: str, wish: Any = "on") -> None:
        self._engine, self._salt, self._wish = engine, salt, wish
        self._answers: list[asyncio.Future[list[int]]] = []
        """Prompt and answer of each request that was sent."""
        self.start_clock()

    @property
    def sent(self) -> int:
        return len(self._answers)

    def start_clock(self) -> None:
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    async def serve(self, asked: Sequence[Asked], room: Callable[[], int]) -> list[Timing]:
        """In their order, as long as there is ``room()`` for one more at all."""
        timings: list[Timing] = []
        running: set[asyncio.Task[None]] = set()
        while len(timings) < len(asked) and (places := room()):
            if len(running) < places:
                one = asked[len(timings)]
                timings.append(Timing(one.kind, len(one.prompt)))
                answer = asyncio.get_running_loop().create_future()
                self._answers.append(answer)
                running.add(asyncio.create_task(self._ask(one, timings[-1], answer)))
                continue
            _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED, timeout=0.5)
        await asyncio.gather(*running)
        return timings

    async def _ask(self, asked: Asked, timing: Timing, answer: asyncio.Future[list[int]]) -> None:
        prompt = asked.prompt.tolist()
        if asked.continues is not None:
            prompt = await self._answers[asked.continues] + prompt
        timing.prompt_tokens = len(prompt)
        tokens: list[int] = []
        sent = last = time.perf_counter()
        limits = {"salt": self._salt, "wish": self._wish, "output_tokens": asked.output_tokens}
        try:
            async for piece in self._engine.stream(prompt, **limits):
                now = time.perf_counter()
                if not piece.tokens:
                    continue
                if timing.ttft_ms is None:
                    timing.ttft_ms, timing.cached_tokens = (now - sent) * 1e3, piece.cached_tokens
                else:
                    timing.gaps_ms.append((now - last) * 1e3)
                tokens, last = [*tokens, *piece.tokens], now
            if len(tokens) == asked.output_tokens:
                timing.ended_s = last - self._began
        except Exception as error:
            print(f"a request failed: {error!r}", flush=True)
        answer.set_result(prompt + tokens)


# --- What they came to -----------------------------------------------------------------------------------------------


def percentiles(timings: Sequence[Timing]) -> dict[str, float]:
    found = {name: values_of(timings, name) for name in FIGURES}
    return {name: round(float(np.percentile(found[name], at)), 2) for name, at in FIGURES.items() if found[name]}


def by_kind(timings: Sequence[Timing]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for kind in sorted({each.kind for each in timings}):
        of_kind = [each for each in served(timings) if each.kind == kind]
        if of_kind:
            prompts = sum(each.prompt_tokens for each in of_kind)
            found[kind] = {
                "requests": len(of_kind),
                "ttft_p50_ms": round(statistics.median(values_of(of_kind, "ttft_p50_ms")), 1),
                "not_computed": round(sum(each.cached_tokens for each in of_kind) / prompts, 3),
            }
    return found


def served(timings: Sequence[Timing]) -> list[Timing]:
    """A request that failed has no time, whatever was answered before it did."""
    return [each for each in timings if each.ended_s is not None]


def failed(timings: Sequence[Timing]) -> int:
    return len(timings) - len(served(timings))


def values_of(timings: Sequence[Timing], name: str) -> list[float]:
    if name.startswith("ttft"):
        return [each.ttft_ms for each in served(timings) if each.ttft_ms is not None]
    return [gap for each in served(timings) for gap in each.gaps_ms]


def ratio(name: str, ours: Sequence[Sequence[Timing]], theirs: Sequence[Sequence[Timing]]) -> Interval | None:
    """Of percentiles over all runs; resamples draw whole runs, and requests within them. None: too few to tell."""
    draw = np.random.default_rng(1)
    arms = [[np.asarray(values_of(run, name)) for run in runs] for runs in (ours, theirs)]
    if any(_too_few(runs, FIGURES[name]) for runs in arms):
        return None

    def percentile(runs: Sequence[np.ndarray]) -> float:
        return float(np.percentile(np.concatenate(runs), FIGURES[name]))

    def resampled(runs: Sequence[np.ndarray]) -> float:
        drawn = [runs[n] for n in draw.integers(0, len(runs), len(runs))]
        return percentile([draw.choice(each, len(each)) for each in drawn])

    ratios = [resampled(arms[0]) / resampled(arms[1]) for _ in range(RESAMPLES // 10)]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return Interval(percentile(arms[0]) / percentile(arms[1]), float(low), float(high))


def _too_few(runs: Sequence[np.ndarray], percent: int) -> bool:
    """Of one run nobody knows by how much the next one differs."""
    beyond = sum(map(len, runs)) * (100 - percent) / 100
    return len(runs) < 2 or not all(map(len, runs)) or beyond < LEAST_BEYOND
