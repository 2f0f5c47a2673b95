"""Traffic that keeps every place of an engine's batch taken: who reuses how much, and who waits how long.

For schedulers without a model: waiting is counted in the engine's calls or rounds, so no figure depends on a machine.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from semblend_core.testing.benchmarks.checked import positive

PASSAGE, PASSAGES, CHOSEN = 96, 6, 4
"""Tokens of a passage, how many there are, and how many of them a reusable prompt holds."""
LEAST_REUSE, MOST_WAIT = 0.9, 1.05
"""Of an idle engine's reuse; of the waiting with reuse off."""


@dataclass(frozen=True)
class Asked:
    prompt: list[int]
    output_tokens: int
    kind: str
    """``reusable``, or ``others``: too short to be looked up."""


@dataclass(frozen=True)
class Traffic:
    """The same requests in the same order for every ``places``, ``alive`` and ``wish``."""

    places: int = 64
    alive: int = 128
    requests: int = 400
    output_tokens: int = 100
    """At least; at most twice as many."""
    wish: str = "on"
    seed: int = 9

    def donors(self) -> list[list[int]]:
        source = random.Random(self.seed)
        return [some(source, 20) + passage + some(source, 5) for passage in self._passages()]

    def asked(self) -> list[Asked]:
        source, passages = random.Random(self.seed + 1), self._passages()
        return [self._one(source, passages) for _ in range(self.requests)]

    def idle(self) -> Traffic:
        """One request at a time."""
        return replace(self, alive=1, output_tokens=1)

    def _passages(self) -> list[list[int]]:
        source = random.Random(self.seed + 2)
        return [some(source, PASSAGE) for _ in range(PASSAGES)]

    def _one(self, source: random.Random, passages: list[list[int]]) -> Asked:
        reusable = source.random() < 0.5
        tokens = self.output_tokens + int(source.random() * self.output_tokens)
        if not reusable:
            return Asked(some(source, 30), tokens, "others")
        prompt = some(source, 24)
        for passage in source.sample(passages, CHOSEN):
            prompt += passage + some(source, 3)
        return Asked(prompt, tokens, "reusable")


@dataclass
class Served:
    reused_tokens: int
    reused_requests: int
    declines: dict[str, int]
    waits: dict[str, list[int]] = field(default_factory=dict)
    """Calls or rounds until a request is first computed, by kind."""

    def mean_wait(self, kind: str) -> float:
        return statistics.fmean(self.waits[kind])


def some(source: random.Random, tokens: int) -> list[int]:
    return [source.randrange(1000, 30_000) for _ in range(tokens)]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--places", type=positive, default=64)
    parser.add_argument("--alive", type=positive, default=128)
    parser.add_argument("--requests", type=positive, default=400)
    parser.add_argument("--output-tokens", type=positive, default=100, help="at least; at most twice as many")


def run(serve: Callable[[Traffic], Served], options: argparse.Namespace) -> dict[str, Any]:
    full = Traffic(options.places, options.alive, options.requests, options.output_tokens)
    served = {"idle": serve(full.idle()), "full": serve(full), "off": serve(replace(full, wish="off"))}
    for name, one in served.items():
        waited = ", ".join(f"{kind} {one.mean_wait(kind):.1f}" for kind in sorted(one.waits))
        print(f"{name:5} {one.reused_requests} requests reused {one.reused_tokens} tokens; mean wait: {waited}")
        print(f"      declined: {one.declines}", flush=True)
    share = served["full"].reused_tokens / served["idle"].reused_tokens
    waits = {kind: served["full"].mean_wait(kind) / served["off"].mean_wait(kind) for kind in served["off"].waits}
    hold(f"{share:.3f} of the reuse of an idle engine", share >= LEAST_REUSE)
    for kind, ratio in waits.items():
        hold(f"{kind} wait {ratio:.3f} of what they wait with reuse off", ratio <= MOST_WAIT)
    return {"reuse_share": share, "waits": waits}


def hold(what: str, holds: bool) -> None:
    print(f"{'holds' if holds else 'FAILS'} {what}", flush=True)
