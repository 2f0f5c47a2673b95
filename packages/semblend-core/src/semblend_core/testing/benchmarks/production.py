"""A load that looks like production, served by an engine with SemBlend and by the stock engine, in turns.

Each arm is a process of its own, and each run of it serves the same mixed requests: so many in flight, more in the
middle of the run than at its ends. Afterwards prompts that were reused are asked for again with reuse off: an answer
that differs from the stock engine's by more than two stock runs differ would mean that the exact cache was polluted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from semblend_core.testing.benchmarks.paired import RESAMPLES, Interval
from semblend_core.testing.benchmarks.prompts import Prompts
from semblend_core.testing.benchmarks.script import as_text
from semblend_core.testing.benchmarks.traffic import Asked, MixedTraffic
from semblend_core.testing.for_adapters import divergence

ARMS = ("stock", "semblend")
SALT = "production"
PHASES = (0.125, 0.25, 0.5, 1.0, 0.5, 0.25)
"""Of the most requests in flight, in equal parts of the time."""
FIGURES = {"ttft_p50_ms": 50, "ttft_p95_ms": 95, "ttft_p99_ms": 99, "inter_token_p99_ms": 99}
NOISE = 5.0
"""A probe is polluted where it strays this many times as far as two stock runs do, at the most."""
ROUNDING = 1e-4
"""In nats: what other shapes of a batch may make of an answer, however alike the stock runs are."""


@dataclass(frozen=True)
class Piece:
    tokens: tuple[int, ...]
    cached_tokens: int
    top: tuple[dict[int, float], ...] = ()


class StreamingEngine(Protocol):
    """A real engine, its scheduler in a process of its own as in a server."""

    @property
    def name(self) -> str: ...

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """On the engine's event loop."""

    def stream(
        self, prompt: list[int], *, salt: str, reuse: bool, output_tokens: int, top: int = 0
    ) -> AsyncIterator[Piece]: ...

    def close(self) -> None: ...


@dataclass
class Timing:
    kind: str
    prompt_tokens: int
    ttft_ms: float | None = None
    gaps_ms: list[float] = field(default_factory=list)
    cached_tokens: int = 0
    ended_s: float | None = None
    """Since the run's begin. None: it failed."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=60, help="of each run")
    parser.add_argument("--runs", type=int, default=3, help="of each arm, in turns")
    parser.add_argument("--in-flight", type=int, default=64, help="at the most; an eighth of it at the ends of a run")
    parser.add_argument("--shortest", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--longest", type=int, default=16_384)
    parser.add_argument("--output-tokens", type=int, nargs=2, default=[16, 128], metavar=("LEAST", "MOST"))
    parser.add_argument("--requests", type=int, default=6000, help="that are prepared; more than a run can serve")
    parser.add_argument("--warm-up", type=int, default=64, help="requests before the clock starts")
    parser.add_argument("--probes", type=int, default=16)
    parser.add_argument("--top", type=int, default=20, help="log-probabilities of a probe")
    parser.add_argument("--arm", choices=ARMS, help="one run of one arm, in this process")


# --- One arm, in this process ----------------------------------------------------------------------------------------


def run_arm(engine: StreamingEngine, prompts: Prompts, options: argparse.Namespace) -> dict[str, Any]:
    limits = {"shortest": options.shortest, "longest": options.longest, "output_tokens": tuple(options.output_tokens)}
    traffic = MixedTraffic(prompts, seed=options.seed, **limits)
    asked = traffic.requests(options.warm_up + options.requests)
    driver = Driver(engine, asked, options)
    timings = engine.run(driver.drive())
    probes = engine.run(driver.probe())
    engine.close()
    return {"engine": engine.name, "timings": [asdict(each) for each in timings], "probes": probes}


class Driver:
    def __init__(self, engine: StreamingEngine, asked: Sequence[Asked], options: argparse.Namespace) -> None:
        self._engine, self._asked, self._options = engine, asked, options
        self._answers: list[asyncio.Future[list[int]]] = []
        """Prompt and answer of each request that was sent."""
        self._began = 0.0

    async def drive(self) -> list[Timing]:
        await self._serve(self._options.warm_up, lambda: max(1, self._options.in_flight // 4))
        self._began = time.perf_counter()
        timings = await self._serve(len(self._asked) - self._options.warm_up, self._room)
        if len(self._answers) == len(self._asked):
            raise SystemExit(f"all {self._options.requests} requests were served: prepare more with --requests")
        return timings

    async def probe(self) -> list[dict[str, Any]]:
        """The first reordered prompts, which every run served, asked for again with reuse off."""
        reordered = [place for place, each in enumerate(self._asked) if each.kind == "reordered"]
        found = []
        for place in reordered[: self._options.probes]:
            prompt = self._asked[place].prompt.tolist()
            limits = {"salt": SALT, "reuse": False, "output_tokens": 1, "top": self._options.top}
            said = [piece async for piece in self._engine.stream(prompt, **limits) if piece.tokens]
            top = list(said[0].top[0].items())
            found.append({"place": place, "cached_tokens": said[0].cached_tokens, "top": top})
        return found

    def _room(self) -> int:
        """How many may be in flight now; none when the time is over."""
        phase = int((time.perf_counter() - self._began) / self._options.seconds * len(PHASES))
        return 0 if phase >= len(PHASES) else max(1, round(PHASES[phase] * self._options.in_flight))

    async def _serve(self, count: int, room: Any) -> list[Timing]:
        timings: list[Timing] = []
        running: set[asyncio.Task[None]] = set()
        while len(timings) < count and (places := room()):
            if len(running) < places:
                asked = self._asked[len(self._answers)]
                timings.append(Timing(asked.kind, len(asked.prompt)))
                answer = asyncio.get_running_loop().create_future()
                self._answers.append(answer)
                running.add(asyncio.create_task(self._ask(asked, timings[-1], answer)))
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
        answering = self._engine.stream(prompt, salt=SALT, reuse=True, output_tokens=asked.output_tokens)
        try:
            async for piece in answering:
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


# --- Both arms, in turns ---------------------------------------------------------------------------------------------


def run(script: str, options: argparse.Namespace) -> dict[str, Any]:
    """Start ``script`` anew for each run, with its own arguments and the arm."""
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.runs):
            for arm in ARMS if number % 2 == 0 else reversed(ARMS):
                output = Path(folder) / f"{arm}-{number}.json"
                command = [sys.executable, script, *sys.argv[1:], "--arm", arm, "--json", str(output)]
                subprocess.run(command, check=True)
                runs[arm].append(json.loads(output.read_text()))
                print(f"run {number + 1} of {options.runs}, {arm}: {_line(runs[arm][-1], options)}", flush=True)
    return judge(runs, options)


def judge(runs: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"engine": runs["stock"][0]["engine"], "options": as_text(options)}
    result["figures"] = {arm: [figures(each["timings"], options) for each in runs[arm]] for arm in ARMS}
    worse = []
    for name, percent in FIGURES.items():
        ours, theirs = ([_values(each["timings"], name) for each in runs[arm]] for arm in ("semblend", "stock"))
        ratio = _ratio(ours, theirs, percent)
        result.setdefault("ratios", {})[name] = asdict(ratio)
        print(f"{'FAILS' if ratio.low > 1 else 'holds'} {name}: {ratio} of stock's", flush=True)
        worse += [name] if ratio.low > 1 else []
    paired = zip(result["figures"]["semblend"], result["figures"]["stock"], strict=True)
    rates = [ours["requests_per_s"] / max(1e-9, theirs["requests_per_s"]) for ours, theirs in paired]
    result["ratios"]["requests_per_s"] = rates
    worse += ["requests_per_s"] if max(rates) < 1 else []
    print(f"{'FAILS' if max(rates) < 1 else 'holds'} requests/s of stock's, run by run: {[round(r, 3) for r in rates]}")
    failed = sum(each["failed"] for arm in ARMS for each in result["figures"][arm])
    result |= {"worse": worse, "failed": failed, "probes": _pollution(runs)}
    print(f"{'holds' if not failed else 'FAILS'} {failed} failed requests; probes: {result['probes']}", flush=True)
    return result


def figures(timings: Sequence[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    in_time = [each for each in timings if each["ended_s"] is not None and each["ended_s"] <= options.seconds]
    values = {name: _values(timings, name) for name in FIGURES}
    by_kind: dict[str, dict[str, float]] = {}
    for kind in sorted({each["kind"] for each in timings}):
        of_kind = [each for each in timings if each["kind"] == kind and each["ttft_ms"] is not None]
        if of_kind:
            prompts = sum(each["prompt_tokens"] for each in of_kind)
            by_kind[kind] = {
                "requests": len(of_kind),
                "ttft_p50_ms": round(statistics.median(each["ttft_ms"] for each in of_kind), 1),
                "not_computed": round(sum(each["cached_tokens"] for each in of_kind) / prompts, 3),
            }
    return {
        "requests": len(timings),
        "requests_per_s": round(len(in_time) / options.seconds, 3),
        "failed": sum(each["ended_s"] is None for each in timings),
        **{name: round(float(np.percentile(values[name], at)), 2) for name, at in FIGURES.items() if values[name]},
        "by_kind": by_kind,
    }


def _values(timings: Sequence[dict[str, Any]], name: str) -> list[float]:
    if name.startswith("ttft"):
        return [each["ttft_ms"] for each in timings if each["ttft_ms"] is not None]
    return [gap for each in timings for gap in each["gaps_ms"]]


def _ratio(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], percent: float) -> Interval:
    """Of percentiles over all runs; resamples draw whole runs, and requests within them."""
    draw = np.random.default_rng(1)

    def resampled(runs: Sequence[Sequence[float]]) -> float:
        drawn = [np.asarray(runs[n]) for n in draw.integers(0, len(runs), len(runs))]
        return float(np.percentile(np.concatenate([draw.choice(each, len(each)) for each in drawn]), percent))

    ratios = [resampled(ours) / resampled(theirs) for _ in range(RESAMPLES // 10)]
    low, high = np.percentile(ratios, [2.5, 97.5])
    whole = [float(np.percentile(np.concatenate([np.asarray(r) for r in runs]), percent)) for runs in (ours, theirs)]
    return Interval(whole[0] / whole[1], float(low), float(high))


def _pollution(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    def probes(run: dict[str, Any]) -> list[dict[int, float]]:
        return [{int(token): value for token, value in each["top"]} for each in run["probes"]]

    first, *others = [probes(run) for run in runs["stock"]]
    noise = [divergence([a], [b]) for other in others for a, b in zip(first, other, strict=True)]
    ours = [divergence([a], [b]) for run in runs["semblend"] for a, b in zip(first, probes(run), strict=True)]
    most = max(ROUNDING, NOISE * max(noise, default=0.0))
    return {
        "asked": len(ours),
        "polluted": sum(each > most for each in ours) if others else None,
        "divergence_of_stock_runs": max(noise, default=None),
        "divergence": max(ours, default=None),
    }


def _line(run: dict[str, Any], options: argparse.Namespace) -> str:
    found = figures(run["timings"], options)
    return ", ".join(f"{name} {value}" for name, value in found.items() if not isinstance(value, dict))
