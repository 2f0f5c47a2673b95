"""Traffic that keeps every place of vLLM's scheduler taken: who reuses how much, and who waits how long.

Waiting is counted in engine calls, of which a step takes two: nothing here depends on how fast a machine is.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from overlapping_engine import Overlapping

PASSAGE, PASSAGES, CHOSEN = 96, 6, 4
SHORT = 8
STEP = 2
"""Engine calls: one that schedules, one that hears of it."""


@dataclass(frozen=True)
class Traffic:
    places: int = 64
    alive: int = 128
    requests: int = 400
    output_tokens: int = 100
    """At least; at most twice as many."""
    reusable_share: float = 0.5
    wish: str = "on"
    seed: int = 9


@dataclass
class Outcome:
    reused_tokens: int = 0
    reused_requests: int = 0
    reusable_requests: int = 0
    declines: dict[str, int] = field(default_factory=dict)
    waits: dict[str, list[int]] = field(default_factory=lambda: {"reusable": [], "others": []})
    """Engine calls until a request is first computed."""

    def mean_wait(self, kind: str) -> float:
        return statistics.fmean(self.waits[kind])


def some(source: random.Random, tokens: int) -> list[int]:
    return [source.randrange(40_000) for _ in range(tokens)]


def serve(traffic: Traffic) -> Outcome:
    """The same requests in the same order for every ``places``, ``alive`` and ``wish``."""
    engine = Overlapping(tokens_of_a_step=2048, places=traffic.places, blocks=6000)
    source = random.Random(traffic.seed)
    passages = [some(source, PASSAGE) for _ in range(PASSAGES)]
    for passage in passages:
        engine.add(some(source, 20) + passage + some(source, 5), 1)
    engine.finish()
    before = engine.side.provider.stats()
    outcome = Outcome()
    asked = [_request(source, passages, traffic) for _ in range(traffic.requests)]
    outcome.reusable_requests = sum(reusable for _, _, reusable in asked)
    _run(engine, list(reversed(asked)), traffic, outcome)
    after = engine.side.provider.stats()
    outcome.reused_tokens = after.confirmed_tokens - before.confirmed_tokens
    outcome.reused_requests = sum(after.outcomes.get(kind, 0) for kind in after.outcomes if str(kind) == "materialized")
    outcome.declines = {str(reason): count for reason, count in after.declines.items()}
    engine.check_nothing_is_left()
    engine.scheduler.shutdown()
    return outcome


def _request(source: random.Random, passages: Sequence[list[int]], traffic: Traffic) -> tuple[list[int], int, bool]:
    reusable = source.random() < traffic.reusable_share
    prompt = some(source, 24 if reusable else 60)  # Sixty are too few to be looked up.
    for passage in source.sample(passages, CHOSEN) if reusable else ():
        prompt += passage + some(source, 3)
    return prompt, traffic.output_tokens + int(source.random() * traffic.output_tokens), reusable


def _run(engine: Overlapping, asked: list[tuple[list[int], int, bool]], traffic: Traffic, outcome: Outcome) -> None:
    alive: set[Any] = set()
    waiting: dict[Any, tuple[int, str]] = {}
    calls = 0
    while asked or alive:
        while asked and len(alive) < traffic.alive:
            prompt, tokens, reusable = asked.pop()
            request = engine.add(prompt, tokens, traffic.wish)
            alive.add(request)
            waiting[request] = (calls, "reusable" if reusable else "others")
        engine.step()
        calls += 1
        for request in [request for request in waiting if request.num_computed_tokens > 0]:
            since, kind = waiting.pop(request)
            outcome.waits[kind].append(calls - since)
        alive = {request for request in alive if not request.is_finished()}
    engine.finish()


def calls_until_short_ones_end(many_rows: str | None) -> int:
    """Seven of eight places decode, then a request with many spans comes, and four short ones behind it.

    ``many_rows``: what the request with many spans asks of SemBlend; None: it does not come at all.
    """
    source, engine = random.Random(5), Overlapping(tokens_of_a_step=512)
    document = some(source, 700)
    engine.add(document)
    engine.finish()
    for _ in range(7):
        engine.add(some(source, SHORT), 200)
    for _ in range(12):
        engine.step()
    if many_rows is not None:
        pieces = [token for at in range(0, 690, 69) for token in document[at : at + 66] + some(source, 2)]
        engine.add(pieces + some(source, 4), 2, many_rows)
    for _ in range(4):
        engine.step()
    short = [engine.add(some(source, SHORT), 2) for _ in range(4)]
    calls = 0
    while not all(request.is_finished() for request in short):
        engine.step()
        calls += 1
    engine.finish()
    engine.scheduler.shutdown()
    return calls
