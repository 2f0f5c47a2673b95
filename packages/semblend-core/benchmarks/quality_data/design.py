"""Which policies the study runs on which transform, at which budgets, on how many cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from quality_data.cases import MAIN_TRANSFORMS
from semblend_core import Plan
from semblend_core.recompute import (
    Corrected,
    FullRecompute,
    KVDeviation,
    Oracle,
    QueryAttention,
    Random,
    RecomputePolicy,
    RotateOnly,
    SeamAndTail,
    SeamHead,
    SharedSink,
    choose_policy,
)

CURVE_BUDGETS = (0.01, 0.02, 0.05, 0.10, 0.15, 0.20, 0.40)
"""Beside 0 and 1, where all policies are the same."""
ONE_DOCUMENT = ("instruction_variant", "new_task", "sparse_edit", "entity_swap")
POLICIES: tuple[Callable[[], RecomputePolicy], ...] = (
    Random,
    SeamHead,
    SharedSink,
    SeamAndTail,
    lambda: Corrected(SeamHead()),
    KVDeviation,
    QueryAttention,
    lambda: QueryAttention(seam=16),
    lambda: Corrected(QueryAttention(seam=16)),
    Oracle,
)
RIVALS = {"CacheBlend's rule": "kv_deviation", "EPIC's rule": "seam_head"}


@dataclass(frozen=True, slots=True)
class Trial:
    label: str
    """The policy's name, or the tier's."""
    budget: float
    policy: RecomputePolicy
    of_tier: bool = False
    answer: bool = False
    """Also decode an answer."""

    @property
    def key(self) -> str:
        # A tier is one cell, though its budget depends on the plan.
        return f"{self.label}@tier" if self.of_tier else f"{self.label}@{self.budget:g}"


@dataclass(frozen=True, slots=True)
class Extent:
    cases: int
    """Per transform, for the tiers."""
    policy_cases: int
    """Per transform, for all policies at equal budget, and for answers."""
    curve_cases: int
    """Per transform, for the other budgets."""
    continuation_tokens: int
    prompt_tokens: int
    transforms: tuple[str, ...]

    def cases_of(self, transform: str) -> int:
        # Half of the entity swaps leave nothing worth loading.
        return 2 * self.cases if transform == "entity_swap" else self.cases


def equal_budget(transform: str) -> float:
    """The budget at which policies are compared: what the balanced tier may spend on this transform."""
    return 0.08 if transform in ONE_DOCUMENT else 0.15


def trials(transform: str, plan: Plan, number: int, extent: Extent) -> Iterator[Trial]:
    """What to run on case ``number`` of a transform."""
    yield Trial("rotate_only", 0.0, RotateOnly())
    for tier in ("fast", "balanced"):
        choice = choose_policy(tier, plan)
        assert choice is not None
        yield Trial(
            tier, choice.budget, choice.policy, of_tier=True, answer=tier == "balanced" and number < extent.policy_cases
        )
    if number < 4:
        yield Trial("full_recompute", 1.0, FullRecompute())
    if transform not in MAIN_TRANSFORMS or number >= extent.policy_cases:
        return
    for make in POLICIES:
        policy = make()
        yield Trial(policy.name, equal_budget(transform), policy)
        if number < extent.curve_cases:
            for budget in CURVE_BUDGETS:
                if budget != equal_budget(transform):
                    yield Trial(policy.name, budget, policy)
