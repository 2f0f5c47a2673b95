"""What SemanticKV reported of its policies, on our workloads of the same names. Our pages explain each of these."""

from __future__ import annotations

import pytest

from sembench.laboratory.config import load_experiment
from sembench.laboratory.experiment import run_experiment
from sembench.laboratory.results import PolicyFigures

PUBLISHED = ("fifo", "lru", "lfu", "size_aware_lru", "static_semantic", "adaptive_semantic")


def figures(
    experiment: str, policies: tuple[str, ...] = ("lru", "static_semantic", "adaptive_semantic")
) -> dict[str, PolicyFigures]:
    config = load_experiment(experiment, seeds=5, policies=list(policies))
    result = run_experiment(config)
    return {each.policy: each for each in [*result.policies, result.belady]}


def test_adaptive_is_far_ahead_of_lru_where_one_off_text_churns_a_small_cache() -> None:
    gain = figures("low_memory_rag_stress")["adaptive_semantic"].ttft_gain_over_lru_percent
    assert gain.low is not None
    assert gain.low > 25  # Published: 35.66.


def test_adaptive_follows_a_workload_that_shifts_and_static_does_not() -> None:
    found = figures("workload_shift_static_vs_adaptive")
    gain = found["adaptive_semantic"].ttft_gain_over_lru_percent
    assert gain.low is not None
    assert gain.low > 12  # Published: 19.86.
    static = found["static_semantic"].ttft_gain_over_lru_percent
    assert static.high is not None
    assert static.high < 0


@pytest.mark.parametrize("experiment", ["legal_review_long_context", "tool_agent_session_reuse"])
def test_lru_is_ahead_where_what_was_used_last_is_used_next(experiment: str) -> None:
    gain = figures(experiment)["adaptive_semantic"].ttft_gain_over_lru_percent
    assert gain.low is not None
    assert gain.high is not None
    assert -4 < gain.low <= gain.high < 0  # Published: LRU ahead by 1 to 2.


@pytest.mark.parametrize(
    "experiment",
    [
        "low_memory_rag_stress",
        "shared_system_prompt_high_reuse",
        "tool_agent_session_reuse",
        "legal_review_long_context",
        "workload_shift_static_vs_adaptive",
    ],
)
def test_ours_does_as_well_as_the_best_published_policy_and_no_better_than_belady(experiment: str) -> None:
    """Over twenty seeds it is within 0.1%; five vary a little more."""
    found = {
        name: each.avg_ttft_ms.value or 0.0 for name, each in figures(experiment, (*PUBLISHED, "cost_aware")).items()
    }
    assert found["belady"] <= found["cost_aware"] < 1.005 * min(found[name] for name in PUBLISHED)
