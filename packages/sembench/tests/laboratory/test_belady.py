from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sembench.laboratory.belady import Accesses, bound_of, dual_bound, farthest_first
from sembench.laboratory.caches import SEMANTICS, Semantics, Unit, make_cache, replay
from sembench.laboratory.latency import LatencyModel, LinearLatency
from sembench.laboratory.requests import CacheRequest
from semblend_core.eviction import POLICY_NAMES


class LaterIsDearer:
    """A token costs more the later it stands, as attention makes it."""

    is_linear = False

    def ttft_ms(self, cached: int, uncached: int) -> float:
        return 10.0 + uncached

    def saved_ms(self, position: int, tokens: int) -> float:
        return tokens * (1.0 + 0.01 * (position + tokens / 2))

    def describe(self) -> dict[str, object]:
        return {}


SIZES = [3, 40, 11, 7, 90, 22, 5, 64]
prompts = st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=5), min_size=1, max_size=40)


def requests_of(drawn: list[list[int]]) -> list[CacheRequest]:
    return [
        CacheRequest(str(at), float(at), tuple(keys), tuple(SIZES[key] for key in keys), ("other",) * len(keys))
        for at, keys in enumerate(drawn)
    ]


@settings(max_examples=60, deadline=None)
@given(
    prompts,
    st.integers(1, 260),
    st.sampled_from(SEMANTICS),
    st.sampled_from(POLICY_NAMES),
    st.sampled_from(["tokens", "blocks"]),
    st.booleans(),
)
def test_no_policy_ever_beats_the_optimum(
    drawn: list[list[int]], budget: int, semantics: Semantics, policy: str, unit: Unit, linear: bool
) -> None:
    requests = requests_of(drawn)
    latency: LatencyModel = LinearLatency() if linear else LaterIsDearer()
    budget = budget if unit == "tokens" else max(1, budget // 40)
    cache = make_cache(policy, budget, semantics=semantics, latency=latency, unit=unit, min_span_tokens=1)
    tally = replay(requests, cache)
    bound = bound_of(Accesses.of(requests, semantics, latency, unit), budget)
    assert tally.block_hits <= bound.block_hits + 1e-6
    assert tally.cached_tokens <= bound.cached_tokens + 1e-6
    assert tally.saved_ms <= bound.saved_ms + 1e-6


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(1, 3))
def test_with_equal_blocks_it_is_what_trying_everything_finds(keys: list[int], capacity: int) -> None:
    requests = [CacheRequest(str(at), at, (key,), (1,), ("other",)) for at, key in enumerate(keys)]
    accesses = Accesses.of(requests, "block", LinearLatency(), "blocks")
    assert bound_of(accesses, capacity).block_hits == pytest.approx(_tried(keys, capacity))


def _tried(keys: list[int], capacity: int) -> int:
    """The most hits of any schedule that may keep anything of what it had and saw."""
    best = {frozenset[int](): 0}
    for key in keys:
        following: dict[frozenset[int], int] = {}
        for held, hits in best.items():
            count = hits + (key in held)
            for size in range(capacity + 1):
                for kept in combinations(held | {key}, size):
                    after = frozenset(kept)
                    following[after] = max(count, following.get(after, 0))
        best = following
    return max(best.values())


def test_bypass_keeps_what_is_used_once_out() -> None:
    # Without bypass one place would hold a, b, a, c, a in turn and never hit.
    requests = [CacheRequest(str(at), at, (ord(key),), (1,), ("other",)) for at, key in enumerate("abaca")]
    assert bound_of(Accesses.of(requests, "block", LinearLatency(), "blocks"), 1).block_hits == 2


def test_a_prefix_cache_s_optimum_holds_whole_beginnings() -> None:
    drawn = [[0, 1, 2, 3], [0, 4], [0, 1, 2, 5], [0, 4], [0, 1, 2, 3]]
    accesses = Accesses.of(requests_of(drawn), "prefix", LinearLatency())
    for capacity in (5, 30, 60, 110):
        shares = farthest_first(accesses, capacity)
        for moment in range(len(drawn)):
            of_prompt = shares[accesses.moments == moment]
            assert list(of_prompt) == sorted(of_prompt, reverse=True)


def test_the_bound_for_other_worths_is_close_to_the_optimum_where_both_are_known() -> None:
    draw = np.random.default_rng(5)
    keys = (draw.zipf(1.3, 600) % 80).tolist()
    requests = [CacheRequest(str(at), at, (key,), (1,), ("other",)) for at, key in enumerate(keys)]
    accesses = Accesses.of(requests, "block", LinearLatency(), "blocks")
    exact = float(farthest_first(accesses, 10).sum())
    bound = dual_bound(accesses, 10, np.ones(len(keys)))
    assert exact <= bound <= 1.05 * exact


def test_a_block_twice_in_a_prompt_is_worth_both_and_takes_room_once() -> None:
    requests = requests_of([[0, 0], [1], [0, 0]])
    bound = bound_of(Accesses.of(requests, "span", LinearLatency()), 3)
    assert bound.block_hits == pytest.approx(2)
    assert bound.cached_tokens == pytest.approx(6)
