"""Traffic that keeps every place of SGLang's batch taken: who reuses how much, and who waits how long.

Waiting is counted in rounds of the scheduler: nothing here depends on how fast a machine is.
"""

from __future__ import annotations

import random
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from rig import Rig

PASSAGE, PASSAGES, CHOSEN = 96, 6, 4


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
    """Rounds until a request is first computed."""

    def mean_wait(self, kind: str) -> float:
        return statistics.fmean(self.waits[kind])


def some(source: random.Random, tokens: int) -> list[int]:
    return [source.randrange(1000, 30_000) for _ in range(tokens)]


def serve(traffic: Traffic) -> Outcome:
    """The same requests in the same order for every ``places``, ``alive`` and ``wish``."""
    rig = Rig(slots=100_000, chunk=2048, most_sequences=traffic.places, lookup_budget_ms=10_000.0)
    source = random.Random(traffic.seed)
    passages = [some(source, PASSAGE) for _ in range(PASSAGES)]
    for number, passage in enumerate(passages):
        rig.serve(some(source, 20) + passage + some(source, 5), f"donor-{number}")
    before = rig.side.provider.stats().confirmed_tokens
    asked = [_request(source, passages, traffic) for _ in range(traffic.requests)]
    outcome = Outcome(reusable_requests=sum(reusable for _, _, reusable in asked))
    _run(rig, deque(asked), traffic, outcome)
    after = rig.side.provider.stats()
    outcome.reused_tokens = after.confirmed_tokens - before
    outcome.reused_requests = sum(number for kind, number in after.outcomes.items() if str(kind) == "materialized")
    outcome.declines = {str(reason): number for reason, number in after.declines.items()}
    rig.check_accounts()
    return outcome


def _request(source: random.Random, passages: Sequence[list[int]], traffic: Traffic) -> tuple[list[int], int, bool]:
    reusable = source.random() < traffic.reusable_share
    prompt = some(source, 24 if reusable else 30)  # Thirty are too few to be looked up.
    for passage in source.sample(passages, CHOSEN) if reusable else ():
        prompt += passage + some(source, 3)
    return prompt, traffic.output_tokens + int(source.random() * traffic.output_tokens), reusable


def _run(rig: Rig, asked: deque[tuple[list[int], int, bool]], traffic: Traffic, outcome: Outcome) -> None:
    """A round admits and computes prompts, or every running request decodes a token, as in SGLang."""
    sent: deque[tuple[list[int], int, bool, int]] = deque()
    """Alive, and behind those that the scheduler may take in this round."""
    left: dict[Any, int] = {}
    since: dict[Any, tuple[int, str]] = {}
    for now in count():
        while asked and len(sent) + len(rig.waiting) + len(rig.running) < traffic.alive:
            sent.append((*asked.popleft(), now))
        while sent and len(rig.waiting) + len(rig.running) + (rig.chunked is not None) < traffic.places:
            prompt, tokens, reusable, born = sent.popleft()
            request = rig.submit(prompt, f"request-{len(left)}", wish=traffic.wish)
            left[request], since[request] = tokens, (born, "reusable" if reusable else "others")
        if not (rig.waiting or rig.running or rig.chunked):
            return
        admitted = rig.step()
        for request in admitted:
            if request in since:
                born, kind = since.pop(request)
                outcome.waits[kind].append(now - born + 1)
        for request in [] if admitted else list(rig.running):
            left[request] -= 1
            if left[request] <= 0:
                rig.finish(request)


def reused_beside(decoding: int) -> int:
    """Tokens that a request of six moved passages reuses while others decode."""
    rig = Rig(slots=32_768, context=8192, chunk=8192, lookup_budget_ms=10_000.0, most_sequences=16)
    source = random.Random(3)
    parts = [some(source, 300) for _ in range(6)]
    rig.serve([token for part in parts for token in part], "donor")
    for number in range(decoding):
        rig.submit(some(source, 20), f"decoding-{number}", wish="off")
    rig.step()
    prompt = [token for number in (3, 0, 5, 1, 4, 2) for token in (*some(source, 9), *parts[number])]
    request = rig.submit(prompt + some(source, 30), "asked")
    rig.step()
    return int(request.cached_tokens)
