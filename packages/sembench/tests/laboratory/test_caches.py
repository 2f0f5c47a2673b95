from __future__ import annotations

import pytest

from sembench.laboratory.caches import SEMANTICS, Semantics, make_cache, replay
from sembench.laboratory.latency import LinearLatency
from sembench.laboratory.requests import CacheRequest
from sembench.laboratory.tally import Series
from sembench.laboratory.workloads import generate
from semblend_core.eviction import POLICY_NAMES


def request(at: float, blocks: str, tokens: int = 100) -> CacheRequest:
    """A prompt whose blocks are letters; capitals are documents, the rest is what users wrote."""
    kinds = tuple("retrieved_context" if letter.isupper() else "user" for letter in blocks)
    return CacheRequest(f"r{at}", at, tuple(map(ord, blocks)), (tokens,) * len(blocks), kinds)


def hits(semantics: Semantics, *prompts: str, budget: int = 10_000, policy: str = "lru") -> list[int]:
    cache = make_cache(policy, budget, semantics=semantics, min_span_tokens=150, seam_tokens=10)
    return [cache.serve(request(at, prompt)).block_hits for at, prompt in enumerate(prompts)]


def test_a_prefix_cache_finds_a_block_only_behind_the_same_beginning() -> None:
    assert hits("prefix", "SAx", "SAy", "SBx", "ASx") == [0, 2, 1, 0]


def test_a_block_cache_finds_a_block_anywhere() -> None:
    assert hits("block", "SAx", "SAy", "SBx", "ASx") == [0, 2, 2, 3]


def test_a_span_cache_finds_runs_that_are_long_enough() -> None:
    # 150 tokens are more than one block: a lone one is not worth moving, two that stood together are.
    assert hits("span", "SAB", "xAB", "yBA", "SAx") == [0, 2, 0, 2]


def test_a_span_that_moved_pays_its_seam_and_a_prefix_does_not() -> None:
    cache = make_cache("lru", 10_000, semantics="span", min_span_tokens=64, seam_tokens=10)
    cache.serve(request(0, "SAB"))
    assert cache.serve(request(1, "SABx")).cached_tokens == 300
    assert cache.serve(request(2, "yAB")).cached_tokens == 200 - 10
    # Two runs that did not stand behind each other pay twice.
    assert cache.serve(request(3, "zBA")).cached_tokens == 2 * (100 - 10)
    assert cache.tally.seam_tokens == 30


def test_least_recently_used_goes_first() -> None:
    assert hits("block", "A", "B", "A", "C", "B", "A", budget=200) == [0, 0, 1, 0, 0, 0]
    assert hits("block", "A", "B", "A", "C", "A", budget=200) == [0, 0, 1, 0, 1]


def test_a_block_larger_than_the_cache_stays_out_and_harms_nobody() -> None:
    cache = make_cache("lru", 150, semantics="block")
    cache.serve(request(0, "A"))
    cache.serve(request(1, "B", tokens=1000))
    assert cache.serve(request(2, "A")).block_hits == 1
    assert cache.tally.refused == 1


def test_a_prompt_longer_than_the_cache_keeps_its_beginning() -> None:
    cache = make_cache("lru", 250, semantics="prefix")
    cache.serve(request(0, "SABCD"))
    assert cache.serve(request(1, "SABCD")).block_hits == 2


def test_a_budget_in_blocks_counts_blocks() -> None:
    cache = make_cache("lru", 2, semantics="block", unit="blocks")
    for at, (letter, tokens) in enumerate([("A", 5000), ("B", 1), ("A", 5000)]):
        served = cache.serve(request(at, letter, tokens))
    assert served.block_hits == 1
    assert cache.policy.held == 2


def test_regret_is_wanting_again_what_went() -> None:
    cache = make_cache("lru", 100, semantics="block")
    for at, letter in enumerate("ABA"):
        cache.serve(request(at, letter))
    assert (cache.tally.evictions, cache.tally.regrets) == (2, 1)
    assert cache.tally.evictions_by_type == {"retrieved_context": 2}


def test_times_follow_the_tokens_that_were_not_cached() -> None:
    cache = make_cache("lru", 10_000, semantics="prefix", latency=LinearLatency(80, 0.08))
    assert cache.serve(request(0, "SAx")).ttft_ms == pytest.approx(80 + 300 * 0.08)
    served = cache.serve(request(1, "SAy"))
    assert served.ttft_ms == pytest.approx(80 + 100 * 0.08)
    assert served.cold_ttft_ms == pytest.approx(80 + 300 * 0.08)
    assert cache.tally.compute_saved == pytest.approx(200 / 600)


@pytest.mark.parametrize("semantics", SEMANTICS)
@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_no_policy_exceeds_its_budget_and_each_stays_whole(policy: str, semantics: Semantics) -> None:
    cache = make_cache(policy, 9_000, semantics=semantics)
    for each in generate("workload_shift_static_vs_adaptive", 60, 3):
        served = cache.serve(each)
        assert cache.policy.held <= 9_000
        assert 0 <= served.cached_tokens <= served.prompt_tokens
        cache.policy.check_integrity()
    assert cache.tally.evictions > 0


def test_memory_is_that_of_what_is_held_however_long_the_trace() -> None:
    def endless() -> object:
        return (request(at, chr(1000 + at % 5000)) for at in range(20_000))

    cache = make_cache("lru", 100 * 50, semantics="span")
    replay(endless(), cache)  # type: ignore[arg-type]
    assert len(cache.policy) == 50
    assert len(cache._before) == 50  # type: ignore[attr-defined]
    assert len(cache._gone) <= 1024
    assert len(cache.tally.utilization.points) < Series.MOST
