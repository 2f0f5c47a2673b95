"""A load that looks like production, served by an engine with SemBlend and by the stock engine, by turns.

Each run serves the same mixed requests under a salt of its own: so many in flight, more in the middle of the run than
at its ends. Afterwards prompts that were reused are asked for again with reuse off: an answer that differs from the
stock engine's by more than two stock runs differ would mean that the exact cache was polluted.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

from semblend_core.testing.benchmarks import streaming, traffic
from semblend_core.testing.benchmarks.arms import ARMS, Arms, EngineOf, add_arm_options
from semblend_core.testing.benchmarks.checked import above_zero, not_negative, positive, why_too_long
from semblend_core.testing.benchmarks.prompts import Prompts
from semblend_core.testing.benchmarks.script import as_text
from semblend_core.testing.benchmarks.streaming import FIGURES, Clients, StreamingEngine, Timing
from semblend_core.testing.benchmarks.traffic import Asked, MixedTraffic
from semblend_core.testing.for_adapters import divergence

PHASES = (0.125, 0.25, 0.5, 1.0, 0.5, 0.25)
"""Of the most requests in flight, in equal parts of the time."""
NOISE = 5.0
"""A probe is polluted where it strays this many times as far as two stock runs do, at the most."""
ROUNDING = 1e-4
"""In nats: what other shapes of a batch may make of an answer, however alike the stock runs are."""
LEAST_IN_TIME = 20
"""Requests that the stock engine serves in a run."""
Likeliest: TypeAlias = dict[int, float]
"""Log-probabilities of the likeliest tokens."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_arm_options(parser)
    parser.add_argument("--seconds", type=above_zero, default=60, help="of each run")
    parser.add_argument(
        "--in-flight", type=positive, default=64, help="at the most; an eighth of it at the ends of a run"
    )
    parser.add_argument("--shortest", type=positive, default=512, help="tokens of a prompt")
    parser.add_argument("--longest", type=positive, default=16_384)
    parser.add_argument("--output-tokens", type=positive, nargs=2, default=[16, 128], metavar=("LEAST", "MOST"))
    parser.add_argument("--requests", type=positive, default=6000, help="that are prepared; more than a run can serve")
    parser.add_argument("--warm-up", type=not_negative, default=64, help="requests of each run before its clock starts")
    parser.add_argument("--probes", type=not_negative, default=16)
    parser.add_argument("--top", type=positive, default=20, help="log-probabilities of a probe")


def why_not(options: argparse.Namespace) -> str | None:
    """Why a run with these could not work, in words that name the option."""
    least, most = options.output_tokens
    if least > most:
        return f"--output-tokens {least} {most}: the least comes first"
    return traffic.why_not(options.shortest, options.longest, most) or why_too_long(options.longest, options)


# --- One arm, in its own process -------------------------------------------------------------------------------------


class Load:
    def __init__(self, engine: StreamingEngine, options: argparse.Namespace) -> None:
        prompts = Prompts.for_model(options.model, options.text, options.seed)
        self._engine, self._options, self._asked = engine, options, requests(prompts, options)

    def __call__(self, number: int) -> dict[str, Any]:
        served: dict[str, Any] = self._engine.run(serve(self._engine, self._asked, self._options, f"run {number}"))
        return served


def requests(prompts: Prompts, options: argparse.Namespace) -> list[Asked]:
    limits = {"shortest": options.shortest, "longest": options.longest, "output_tokens": tuple(options.output_tokens)}
    return MixedTraffic(prompts, seed=options.seed, **limits).requests(options.warm_up + options.requests)


async def serve(
    engine: StreamingEngine, asked: Sequence[Asked], options: argparse.Namespace, salt: str
) -> dict[str, Any]:
    clients = Clients(engine, salt)
    await clients.serve(asked[: options.warm_up], lambda: max(1, options.in_flight // 4))
    clients.start_clock()
    timings = await clients.serve(asked[options.warm_up :], lambda: room(clients.seconds, options))
    if clients.sent == len(asked):
        failed = streaming.failed(timings)
        raise SystemExit(f"all {options.requests} requests were sent, {failed} failed: prepare more with --requests")
    return {"timings": timings, "probes": await probe(engine, asked[: clients.sent], options, salt)}


def room(seconds: float, options: argparse.Namespace) -> int:
    """How many may be in flight now; none when the time is over."""
    phase = int(seconds / options.seconds * len(PHASES))
    return 0 if phase >= len(PHASES) else max(1, round(PHASES[phase] * options.in_flight))


async def probe(
    engine: StreamingEngine, sent: Sequence[Asked], options: argparse.Namespace, salt: str
) -> list[Likeliest | None]:
    """The first reordered prompts that were sent, asked for again with reuse off: their likeliest tokens."""
    reordered = [each for each in sent if each.kind == "reordered"]
    return [await _likeliest(engine, each, options, salt) for each in reordered[: options.probes]]


async def _likeliest(engine: StreamingEngine, asked: Asked, options: argparse.Namespace, salt: str) -> Likeliest | None:
    """None: it failed."""
    limits = {"salt": salt, "wish": "off", "output_tokens": 1, "top": options.top}
    try:
        said = [piece async for piece in engine.stream(asked.prompt.tolist(), **limits) if piece.tokens]
    except Exception as error:
        print(f"a probe failed: {error!r}", flush=True)
        return None
    return said[0].top[0] if said else None


# --- Both arms, by turns ---------------------------------------------------------------------------------------------


def run(engine_of: EngineOf, options: argparse.Namespace) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    Prompts.for_model(options.model, options.text, options.seed)  # Or it fails once engines have started.
    with Arms(engine_of, Load, options) as arms:
        result = {"engine": arms.engine, "options": as_text(options)}
        for number in range(options.runs):
            for arm, found in arms.by_turns(number):
                runs[arm].append(found)
                print(f"run {number + 1} of {options.runs}, {arm}: {_line(found, options)}", flush=True)
    return result | judge(runs, options)


def judge(runs: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> dict[str, Any]:
    """What holds, what does not, and what so few requests cannot tell."""
    found = {arm: [figures(each["timings"], options) for each in runs[arm]] for arm in ARMS}
    by_arm = [[each["timings"] for each in runs[arm]] for arm in ("semblend", "stock")]
    ratios = {name: streaming.ratio(name, *by_arm) for name in FIGURES}
    holds = {name: None if ratio is None else ratio.low <= 1 for name, ratio in ratios.items()}
    for name, ratio in ratios.items():
        _say(holds[name], f"{name}: {ratio or 'too few requests or runs,'} of stock's")
    rates = {arm: [each["requests_per_s"] for each in found[arm]] for arm in ARMS}
    by_run = [ours / theirs for ours, theirs in zip(rates["semblend"], rates["stock"], strict=True) if theirs]
    # With one run, or a handful of requests in each, one request more or less would decide.
    tells = len(by_run) > 1 and min(rates["stock"]) * options.seconds >= LEAST_IN_TIME
    holds["requests_per_s"] = max(by_run) >= 1 if tells else None
    _say(holds["requests_per_s"], f"requests/s of stock's, run by run: {[round(each, 3) for each in by_run]}")
    failed = sum(each["failed"] for arm in ARMS for each in found[arm])
    _say(not failed, f"{failed} failed requests")
    probes = _pollution(runs)
    _say(None if probes["polluted"] is None else not probes["polluted"], f"polluted probes: {probes}")
    return {
        "figures": found,
        "ratios": {name: ratio and asdict(ratio) for name, ratio in ratios.items()} | {"requests_per_s": by_run},
        "worse": [name for name, held in holds.items() if held is False],
        "undecided": [name for name, held in holds.items() if held is None],
        "failed": failed,
        "probes": probes,
    }


def _say(holds: bool | None, what: str) -> None:
    print(f"{'undecided' if holds is None else 'holds' if holds else 'FAILS'} {what}", flush=True)


def figures(timings: Sequence[Timing], options: argparse.Namespace) -> dict[str, Any]:
    in_time = [each for each in timings if each.ended_s is not None and each.ended_s <= options.seconds]
    return {
        "requests": len(timings),
        "requests_per_s": round(len(in_time) / options.seconds, 3),
        "failed": streaming.failed(timings),
        **streaming.percentiles(timings),
        "by_kind": streaming.by_kind(timings),
    }


def _pollution(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    first, *others = [run["probes"] for run in runs["stock"]]
    noise = [apart for other in others for apart in _apart(first, other)]
    ours = [apart for run in runs["semblend"] for apart in _apart(first, run["probes"])]
    polluted = sum(each > max(ROUNDING, NOISE * max(noise, default=0.0)) for each in ours)
    # What a single stock run strays by is not known. But it could only admit more.
    tells = bool(ours) and (bool(noise) or not polluted)
    return {
        "asked": len(ours),
        "polluted": polluted if tells else None,
        "divergence_of_stock_runs": max(noise, default=None),
        "divergence": max(ours, default=None),
    }


def _apart(one: Sequence[Likeliest | None], other: Sequence[Likeliest | None]) -> list[float]:
    """Of the probes that both runs have an answer to. One run sends more requests than another."""
    return [divergence([a], [b]) for a, b in zip(one, other, strict=False) if a and b]


def _line(run: dict[str, Any], options: argparse.Namespace) -> str:
    found = figures(run["timings"], options)
    return ", ".join(f"{name} {value}" for name, value in found.items() if not isinstance(value, dict))
