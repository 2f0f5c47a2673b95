"""Which tokens of a plan are computed afresh: the tier's choice, or a policy by name."""

from __future__ import annotations

from collections.abc import Callable

from sembench.embedded.config import EmbeddedConfig
from sembench.schema import InputError
from semblend_core import Plan
from semblend_core.recompute import (
    Corrected,
    FullRecompute,
    KVDeviation,
    QueryAttention,
    Random,
    RecomputePolicy,
    RotateOnly,
    SeamAndTail,
    SeamHead,
    SharedSink,
    TierChoice,
    choose_policy,
)

_SEAM = 16
_POLICIES: dict[str, Callable[[], RecomputePolicy]] = {
    "rotate_only": RotateOnly,
    "seam_head": SeamHead,
    "seam_and_tail": SeamAndTail,
    "shared_sink": SharedSink,
    "query_attention": QueryAttention,
    "seam_head+query_attention": lambda: QueryAttention(seam=_SEAM),
    "seam_head+mean_shift": lambda: Corrected(SeamHead()),
    "seam_head+query_attention+mean_shift": lambda: Corrected(QueryAttention(seam=_SEAM)),
    "kv_deviation": KVDeviation,
    "random": Random,
    "full_recompute": FullRecompute,
}
POLICY_NAMES = tuple(_POLICIES)
POLICY_BUDGET = 0.15
"""For a policy by name, where no budget is given: what the tiers spend at most."""

Chooser = Callable[[Plan], TierChoice | None]


def make_chooser(config: EmbeddedConfig) -> Chooser:
    """What to do with a plan; None for a plan that the tier declines."""
    if config.policy is None:
        return lambda plan: _with_budget(choose_policy(config.tier, plan), config.budget)
    if config.policy not in _POLICIES:
        raise InputError(f"--policy: {config.policy!r} is none of {', '.join(POLICY_NAMES)}")
    choice = TierChoice(_POLICIES[config.policy](), POLICY_BUDGET if config.budget is None else config.budget)
    return lambda plan: choice


def _with_budget(choice: TierChoice | None, budget: float | None) -> TierChoice | None:
    return choice if choice is None or budget is None else TierChoice(choice.policy, budget)
