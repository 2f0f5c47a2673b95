"""Eviction policies by the names that settings and experiments use."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from semblend_core.eviction.arc import AdaptiveReplacement
from semblend_core.eviction.cost_aware import CostAware
from semblend_core.eviction.frequency import LeastFrequentlyUsed
from semblend_core.eviction.gdsf import GreedyDual
from semblend_core.eviction.policy import EvictionPolicy
from semblend_core.eviction.priced_lru import PricedLru
from semblend_core.eviction.recency import FirstInFirstOut, LeastRecentlyUsed
from semblend_core.eviction.s3fifo import S3Fifo
from semblend_core.eviction.semantic import AdaptiveSemantic, StaticSemantic
from semblend_core.eviction.size_aware import SizeAwareLru

_POLICIES: dict[str, type[EvictionPolicy[Any]]] = {
    kind.name: kind
    for kind in (
        FirstInFirstOut,
        LeastRecentlyUsed,
        LeastFrequentlyUsed,
        SizeAwareLru,
        PricedLru,
        StaticSemantic,
        AdaptiveSemantic,
        S3Fifo,
        AdaptiveReplacement,
        GreedyDual,
        CostAware,
    )
}
POLICY_NAMES: tuple[str, ...] = tuple(_POLICIES)


def policy_named(
    name: str, *, capacity: int | None = None, may_refuse: bool = True, **options: Any
) -> EvictionPolicy[Hashable]:
    """A new policy.

    ``capacity``: the budget in the unit of ``Entry.bytes``. ``may_refuse``: whether ``admit`` may say no. ``options``:
    what this policy knows beside.
    """
    if name not in _POLICIES:
        raise ValueError(f"no eviction policy is called {name!r}; use one of {', '.join(POLICY_NAMES)}")
    policy = _POLICIES[name](capacity=capacity, **options)
    policy.may_refuse = may_refuse
    return policy
