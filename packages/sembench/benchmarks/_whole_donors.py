"""Requests served from whole donors of limited size: a model of what an engine keeps, without the engine.

A donor is a prompt, found by the longest beginning that it shares with another one; of those that share as much the
newest serves. What is kept follows the engines' rule: a prompt that adds little to a donor is not, and a donor that is
the beginning of a newer one goes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from sembench.laboratory.requests import CacheRequest
from semblend_core.eviction import Entry, policy_named

LEAST_REUSED, LEAST_SHARE = 128, 0.1
"""Tokens, and share of a prompt, that a plan must spare."""
LEAST_ADDED, SMALL_ADDITION = 64, 0.1
"""Tokens that a prompt must add to be kept; below this share of it, it is kept when it is asked for twice."""
MOST_COPIES, LEAST_COPIED = 64, 0.1


@dataclass(slots=True)
class _Step:
    """A block behind the blocks before it."""

    next: dict[int, _Step] = field(default_factory=dict)
    donors: dict[Hashable, None] = field(default_factory=dict)
    """Those that go through it, the oldest first."""
    ends: int | None = None


class WholeDonors:
    def __init__(self, policy: str, budget: int) -> None:
        self.budget = budget
        self.policy = policy_named(policy, capacity=budget, may_refuse=False)
        self.prompt_tokens = self.reused_tokens = 0
        self._root = _Step()
        self._donors: dict[int, tuple[tuple[int, ...], int]] = {}
        """Blocks and tokens, by number."""
        self._asked_once: set[tuple[int, ...]] = set()
        self._served = 0

    def serve(self, request: CacheRequest) -> None:
        self._served += 1
        self.prompt_tokens += request.total_tokens
        path = self._shared(request)
        shared = path[-1][1] if path else 0
        if path and shared >= max(LEAST_REUSED, LEAST_SHARE * request.total_tokens):
            self.reused_tokens += min(shared, request.total_tokens - 1)
            self.policy.touch(next(reversed(path[-1][0].donors)), request.at_s)
        if self._wants(request, request.total_tokens - shared):
            self._keep(request, path)

    def _shared(self, request: CacheRequest) -> list[tuple[_Step, int]]:
        """The steps that some donor shares, each with the tokens up to its end."""
        step, tokens, path = self._root, 0, []
        for key, size in zip(request.keys, request.tokens, strict=True):
            following = step.next.get(key)
            if following is None:
                break
            step, tokens = following, tokens + size
            path.append((step, tokens))
        return path

    def _wants(self, request: CacheRequest, added: int) -> bool:
        if added < LEAST_ADDED or request.total_tokens > self.budget:
            return False
        if added >= SMALL_ADDITION * request.total_tokens or request.keys in self._asked_once:
            return True
        self._asked_once.add(request.keys)
        return False

    def _keep(self, request: CacheRequest, path: Sequence[tuple[_Step, int]]) -> None:
        number, size = self._served, request.total_tokens
        while self.policy.held + size > self.budget:
            victim = self.policy.victim()
            assert isinstance(victim, int)
            self.policy.remove(victim)
            self._forget(victim)
        for donor, tokens in islice(self._alike(path), MOST_COPIES):
            if tokens >= LEAST_COPIED * self._donors[donor][1]:
                self.policy.note_copied(donor, tokens)
        replaced = [step.ends for step, _ in path if step.ends in self._donors]
        self._donors[number] = (request.keys, size)
        step = self._root
        for key in request.keys:
            step = step.next.setdefault(key, _Step())
            step.donors[number] = None
        step.ends = number
        self.policy.admit(number, Entry(tokens=size, bytes=size, prompt_tokens=size), request.at_s)
        for donor in replaced:
            assert donor is not None
            self.policy.remove(donor, evicted=False)
            self._forget(donor)

    def _alike(self, path: Sequence[tuple[_Step, int]]) -> list[tuple[int, int]]:
        """Donors that begin alike, those with most in common first, and how many tokens they share."""
        seen: dict[int, int] = {}
        for step, tokens in reversed(path):
            for donor in step.donors:
                assert isinstance(donor, int)
                if donor in self._donors:
                    seen.setdefault(donor, tokens)
            if len(seen) >= MOST_COPIES:
                break
        return list(seen.items())

    def _forget(self, donor: int) -> None:
        keys, _ = self._donors.pop(donor)
        step = self._root
        for key in keys:
            following = step.next[key]
            del following.donors[donor]
            if not following.donors:
                del step.next[key]
                return
            step = following
        if step.ends == donor:
            step.ends = None


def reuse_of(requests: Sequence[CacheRequest], budget: int, policy: str) -> float:
    """Share of the prompts' tokens that donors served."""
    donors = WholeDonors(policy, budget)
    for request in requests:
        donors.serve(request)
    return donors.reused_tokens / max(1, donors.prompt_tokens)
