"""Requests per second under steady load, and how long single ones wait: stock and with SemBlend, by turns.

Of the prompts a share holds a document that was served before, behind a new instruction; the others are new.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from dataclasses import asdict
from typing import Any

import numpy as np

from semblend_core.testing.benchmarks import streaming
from semblend_core.testing.benchmarks.arms import ARMS, Arms, EngineOf, add_arm_options
from semblend_core.testing.benchmarks.checked import from_0_to_1, positive, why_too_long, why_too_short
from semblend_core.testing.benchmarks.paired import Pairs
from semblend_core.testing.benchmarks.prompts import INSTRUCTION, QUESTION, Prompts
from semblend_core.testing.benchmarks.script import as_text
from semblend_core.testing.benchmarks.streaming import FIGURES, Clients, StreamingEngine, Timing
from semblend_core.testing.benchmarks.traffic import Asked

SETTLING_S = 1.0
"""Captures become donors behind the answer."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_arm_options(parser)
    parser.add_argument("--shares", type=from_0_to_1, nargs="+", default=[0.0, 0.5], help="how much is reusable")
    parser.add_argument("--tokens", type=positive, default=8192, help="of a prompt")
    parser.add_argument("--output-tokens", type=positive, default=16)
    parser.add_argument("--requests", type=positive, default=40, help="of each share in each run")
    parser.add_argument("--in-flight", type=positive, default=8)
    parser.add_argument("--no-capture", action="store_true", help="what is timed becomes no donor")


def why_not(options: argparse.Namespace) -> str | None:
    """Why a run with these could not work, in words that name the option."""
    least = INSTRUCTION + QUESTION + 1
    too_long = why_too_long(options.tokens + options.output_tokens, options)
    return why_too_short("--tokens", options.tokens, least) or too_long


class SteadyLoad:
    """Draws the same prompts in both arms' processes, and new ones in each run."""

    def __init__(self, engine: StreamingEngine, options: argparse.Namespace) -> None:
        self._engine, self._options = engine, options
        self._prompts = Prompts.for_model(options.model, options.text, options.seed)

    def __call__(self, number: int) -> dict[float, dict[str, Any]]:
        return {share: self._engine.run(self._serve(share, f"run {number}")) for share in self._options.shares}

    async def _serve(self, share: float, salt: str) -> dict[str, Any]:
        options = self._options
        donors, asked = self._drawn(share)
        await Clients(self._engine, salt).serve(donors, lambda: options.in_flight)
        await asyncio.sleep(SETTLING_S)
        clients = Clients(self._engine, salt, {"capture": not options.no_capture})
        clients.start_clock()
        timings = await clients.serve(asked, lambda: options.in_flight)
        return {"seconds": clients.seconds, "timings": timings}

    def _drawn(self, share: float) -> tuple[list[Asked], list[Asked]]:
        """Donors, and what is timed."""
        options, donors, asked = self._options, [], []
        for place in range(options.requests):
            if place < share * options.requests:
                material = self._prompts.new_instruction(options.tokens)
                donors += [asked_for("donor", donor, 1) for donor in material.donors]
                asked.append(asked_for("reusable", material.recipient(), options.output_tokens))
            else:
                asked.append(asked_for("new", self._prompts.fresh(options.tokens), options.output_tokens))
        random.Random(1).shuffle(asked)
        return donors, asked


def asked_for(kind: str, prompt: list[int], output_tokens: int) -> Asked:
    return Asked(kind, np.array(prompt, np.int32), output_tokens)


def run(engine_of: EngineOf, options: argparse.Namespace) -> dict[str, Any]:
    runs: dict[str, list[dict[float, Any]]] = {arm: [] for arm in ARMS}
    Prompts.for_model(options.model, options.text, options.seed)  # Or it fails once engines have started.
    with Arms(engine_of, SteadyLoad, options) as arms:
        result = {"engine": arms.engine, "options": as_text(options)}
        arms.by_turns(0)  # Compilations, and costs that are not known yet.
        for number in range(1, options.runs + 1):
            for arm, found in arms.by_turns(number):
                runs[arm].append(found)
                rates = {share: round(_rate(each), 2) for share, each in found.items()}
                print(f"run {number} of {options.runs}, {arm}: requests/s by share {rates}", flush=True)
    by_share = {share: [[each[share] for each in runs[arm]] for arm in ARMS] for share in options.shares}
    return result | {"shares": {share: judge(found, share) for share, found in by_share.items()}}


def judge(runs: list[list[dict[str, Any]]], share: float) -> dict[str, Any]:
    """``runs``: stock's and ours."""
    theirs, ours = runs
    rates = Pairs([_rate(each) for each in ours], [_rate(each) for each in theirs])
    timings = [[each["timings"] for each in arm] for arm in (ours, theirs)]
    ratios = {name: streaming.ratio(name, *timings) for name in FIGURES}
    ratios["requests_per_s"] = rates.ratio() if len(ours) > 1 and all(rates.theirs) else None
    for name, ratio in ratios.items():
        print(f"{share:g} reusable: {name}: {ratio or 'undecided, too few requests or runs,'} of stock's", flush=True)
    return {
        "requests_per_s": dict(zip(ARMS, (rates.theirs, rates.ours), strict=True)),
        "ratios": {name: ratio and asdict(ratio) for name, ratio in ratios.items()},
        "figures": {arm: [_figures(each["timings"]) for each in found] for arm, found in zip(ARMS, runs, strict=True)},
        "failed": sum(streaming.failed(each["timings"]) for arm in runs for each in arm),
    }


def _figures(timings: list[Timing]) -> dict[str, Any]:
    return {**streaming.percentiles(timings), "by_kind": streaming.by_kind(timings)}


def _rate(run: dict[str, Any]) -> float:
    return len(streaming.served(run["timings"])) / float(run["seconds"])
