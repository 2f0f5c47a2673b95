"""SGLang's admission with every place taken. Waiting is counted in rounds of the scheduler."""

from __future__ import annotations

import random
from collections import deque
from itertools import count
from typing import Any

from rig import Rig

from semblend_core.testing.benchmarks import saturation


def serve(traffic: saturation.Traffic) -> saturation.Served:
    rig = Rig(slots=100_000, chunk=2048, most_sequences=traffic.places, lookup_budget_ms=600_000.0)
    for number, donor in enumerate(traffic.donors()):
        rig.serve(donor, f"donor-{number}")
    before = rig.side.provider.stats().confirmed_tokens
    waits = _serve_all(rig, traffic)
    after = rig.side.provider.stats()
    reused = sum(number for kind, number in after.outcomes.items() if str(kind) == "materialized")
    rig.check_accounts()
    declines = {str(reason): number for reason, number in after.declines.items()}
    return saturation.Served(after.confirmed_tokens - before, reused, declines, waits)


def _serve_all(rig: Rig, traffic: saturation.Traffic) -> dict[str, list[int]]:
    """A round admits and computes prompts, or every running request decodes a token, as in SGLang."""
    waits: dict[str, list[int]] = {}
    to_come = deque(traffic.asked())
    queue: deque[tuple[saturation.Asked, int]] = deque()
    """Alive, and behind those that have a place or may take one in this round."""
    left: dict[Any, int] = {}
    since: dict[Any, tuple[int, str]] = {}
    for now in count():
        while to_come and len(queue) + _placed(rig) < traffic.alive:
            queue.append((to_come.popleft(), now))
        while queue and _placed(rig) < traffic.places:
            asked, born = queue.popleft()
            request = rig.submit(asked.prompt, f"request-{len(left)}", wish=traffic.wish)
            left[request], since[request] = asked.output_tokens, (born, asked.kind)
        if not _placed(rig):
            return waits
        admitted = rig.step()
        for request in admitted:
            if request in since:
                born, kind = since.pop(request)
                waits.setdefault(kind, []).append(now - born + 1)
        for request in [] if admitted else list(rig.running):
            left[request] -= 1
            if left[request] <= 0:
                rig.finish(request)
    raise AssertionError("the count never ends")


def _placed(rig: Rig) -> int:
    return len(rig.waiting) + len(rig.running) + (rig.chunked is not None)


def reused_beside(decoding: int) -> int:
    """Tokens that a request of six moved passages reuses while others decode."""
    rig = Rig(slots=32_768, context=8192, chunk=8192, lookup_budget_ms=600_000.0, most_sequences=16)
    source = random.Random(3)
    parts = [saturation.some(source, 300) for _ in range(6)]
    rig.serve([token for part in parts for token in part], "donor")
    for number in range(decoding):
        rig.submit(saturation.some(source, 20), f"decoding-{number}", wish="off")
    rig.step()
    prompt = [token for number in (3, 0, 5, 1, 4, 2) for token in (*saturation.some(source, 9), *parts[number])]
    request = rig.submit(prompt + saturation.some(source, 30), "asked")
    rig.step()
    return int(request.cached_tokens)
