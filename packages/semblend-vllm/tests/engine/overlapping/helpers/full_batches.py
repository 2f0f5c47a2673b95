"""vLLM's scheduler with every place taken. Waiting is counted in engine calls, of which a step takes two."""

from __future__ import annotations

import random
from typing import Any

from overlapping_engine import Overlapping

from semblend_core.testing.benchmarks import saturation

STEP = 2
"""Engine calls: one that schedules, one that hears of it."""


def serve(traffic: saturation.Traffic) -> saturation.Served:
    engine = Overlapping(tokens_of_a_step=2048, places=traffic.places, blocks=6000)
    for donor in traffic.donors():
        engine.add(donor, 1)
    engine.finish()
    before = engine.side.provider.stats().confirmed_tokens
    waits = _serve_all(engine, traffic)
    after = engine.side.provider.stats()
    reused = sum(number for kind, number in after.outcomes.items() if str(kind) == "materialized")
    declines = {str(reason): number for reason, number in after.declines.items()}
    engine.check_nothing_is_left()
    engine.scheduler.shutdown()
    return saturation.Served(after.confirmed_tokens - before, reused, declines, waits)


def _serve_all(engine: Overlapping, traffic: saturation.Traffic) -> dict[str, list[int]]:
    waits: dict[str, list[int]] = {}
    to_come, alive = list(reversed(traffic.asked())), set[Any]()
    waiting: dict[Any, tuple[int, str]] = {}
    calls = 0
    while to_come or alive:
        while to_come and len(alive) < traffic.alive:
            asked = to_come.pop()
            request = engine.add(asked.prompt, asked.output_tokens, traffic.wish)
            alive.add(request)
            waiting[request] = (calls, asked.kind)
        engine.step()
        calls += 1
        for request in [request for request in waiting if request.num_computed_tokens > 0]:
            since, kind = waiting.pop(request)
            waits.setdefault(kind, []).append(calls - since)
        alive = {request for request in alive if not request.is_finished()}
    engine.finish()
    return waits


def calls_until_short_ones_end(many_rows: str | None) -> int:
    """Seven of eight places decode, then a request with many spans comes, and four short ones behind it.

    ``many_rows``: what the request with many spans asks of SemBlend; None: it does not come at all.
    """
    source, engine = random.Random(5), Overlapping(tokens_of_a_step=512)
    document = saturation.some(source, 700)
    engine.add(document)
    engine.finish()
    for _ in range(7):
        engine.add(saturation.some(source, 8), 200)
    for _ in range(12):
        engine.step()
    if many_rows is not None:
        pieces = [token for at in range(0, 690, 69) for token in document[at : at + 66] + saturation.some(source, 2)]
        engine.add(pieces + saturation.some(source, 4), 2, many_rows)
    for _ in range(4):
        engine.step()
    short = [engine.add(saturation.some(source, 8), 2) for _ in range(4)]
    calls = 0
    while not all(request.is_finished() for request in short):
        engine.step()
        calls += 1
    engine.finish()
    engine.scheduler.shutdown()
    return calls
