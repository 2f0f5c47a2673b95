"""What an access costs does not grow with what is held: counted in lines of Python that run, not in seconds."""

from __future__ import annotations

import random
import sys
from types import FrameType
from typing import Any

import pytest

from semblend_core.eviction import POLICY_NAMES, Entry, EvictionPolicy, LeavesFirst, policy_named

SMALL, LARGE = 500, 6_000


def lines_per_access(policy: EvictionPolicy[Any], capacity: int) -> float:
    """After the policy has filled, over one more budget of accesses."""
    draw = random.Random(3)
    accesses = [int(capacity * 2 * draw.paretovariate(1.1)) for _ in range(3 * capacity)]
    _replay(policy, accesses[: 2 * capacity], capacity, 0)
    counted = 0

    def count(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal counted
        counted += event == "line"
        return count

    sys.settrace(count)
    try:
        _replay(policy, accesses[2 * capacity :], capacity, 2 * capacity)
    finally:
        sys.settrace(None)
    return counted / capacity


def _replay(policy: EvictionPolicy[Any], accesses: list[int], capacity: int, start: int) -> None:
    for now, key in enumerate(accesses, start):
        if key in policy:
            policy.touch(key, now / 50)
        elif policy.admit(key, Entry(kind="code" if key % 3 else "user", tokens=16), now / 50):
            while policy.held > capacity:
                policy.remove(policy.victim(key.__eq__))


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_the_work_per_access_does_not_grow_with_what_is_held(name: str) -> None:
    small = lines_per_access(policy_named(name, capacity=SMALL), SMALL)
    large = lines_per_access(policy_named(name, capacity=LARGE), LARGE)
    assert large < 1.5 * small + 5


def test_leaves_first_adds_a_bounded_part() -> None:
    small = lines_per_access(LeavesFirst(policy_named("lru", capacity=SMALL)), SMALL)
    large = lines_per_access(LeavesFirst(policy_named("lru", capacity=LARGE)), LARGE)
    assert large < 1.5 * small + 5


def test_a_long_prompt_is_evicted_without_walking_it_for_every_block() -> None:
    blocks = LeavesFirst(policy_named("fifo"))
    for place in range(20_000):
        assert blocks.admit(place, Entry(parent=place - 1 if place else None), 0.0)
    counted = 0

    def count(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal counted
        counted += event == "line"
        return count

    sys.settrace(count)
    try:
        for place in reversed(range(20_000)):
            assert blocks.victim() == place
            blocks.remove(place)
    finally:
        sys.settrace(None)
    assert counted < 60 * 20_000
