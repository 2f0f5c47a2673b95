"""The named quality tiers: which policy, and how much of it, for which shape of plan. From docs/quality.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from semblend_core.contract import Plan, Span
from semblend_core.recompute.policies import QueryAttention, SeamAndTail, SeamHead
from semblend_core.recompute.policy import Corrected, MeanShift, RecomputePolicy
from semblend_core.recompute.reuse import MOST_FEW, places_of
from semblend_core.settings import QualityTier

SEAM_TOKENS = 16
MOST_SPENT = 0.5
"""Of the reused tokens, where more is spent than a tier was measured with. Beyond it, better computed cold."""
ROW_SHIFT = MeanShift(0.7, value_strength=0.5, reach=64.0, likeness=3.0, learned=True)
"""The correction of the balanced tier. Near and like rows say most; K follows them further than V does."""
SEAM_SHIFT = replace(ROW_SHIFT, strength=0.6, value_strength=0.4)
"""The same where rows are seams: what they show says less of the rest than rows that a probe chose."""


@dataclass(frozen=True, slots=True)
class TierChoice:
    policy: RecomputePolicy
    budget: float
    """Share of the reused tokens, probes included."""


_ONE_PLACE_FAST = TierChoice(SeamAndTail(seam=32, after_edit=4, tail=16), 0.05)
_ONE_PLACE = TierChoice(SeamAndTail(seam=768, after_edit=16, tail=64), 0.15)
_ONE_PLACE_STRICT = TierChoice(SeamAndTail(seam=1280, after_edit=16, tail=64), 0.25)
_SEVERAL_PLACES_FAST = TierChoice(SeamHead(SEAM_TOKENS), 0.05)
_PROBED = Corrected(QueryAttention(24, (0.3, 0.95), "peaks"), ROW_SHIFT)
_UNPROBED = Corrected(SeamHead(), SEAM_SHIFT)
_FEW_PLACES_BUDGET, _MANY_PLACES_BUDGET = 0.25, 0.30
LEAST_ROW_TOKENS = 768
"""Of several places, within ``MOST_SPENT``. Of a short prompt a quarter is too few tokens to find a fact again."""


def choose_policy(
    tier: QualityTier, plan: Plan, *, probing: bool = True, limit: float | None = None, spending: float = 1.0
) -> TierChoice | None:
    """The tier's policy for ``plan``, which computes gaps only. None: decline, the tier cannot hold its promise.

    ``probing``: whether the engine can look at attention before it decides. Without it the balanced tier computes
    longer seams, which the correction makes nearly as good. ``limit``: the budget is at most this.
    ``spending``: so many times what the tier was measured with, within limits.
    """
    return choose_policy_for(tier, plan.spans, probing=probing, limit=limit, spending=spending)


def choose_policy_for(
    tier: QualityTier,
    spans: Sequence[Span],
    *,
    probing: bool = True,
    limit: float | None = None,
    spending: float = 1.0,
) -> TierChoice | None:
    """The same while there are spans and no plan yet."""
    choice = _choose(tier, places_of(spans), sum(span.length for span in spans), probing)
    if choice is not None and spending > 1:
        most = max(choice.budget, MOST_SPENT)
        choice = TierChoice(choice.policy.spending(spending), min(spending * choice.budget, most))
    if choice is None or limit is None:
        return choice
    return replace(choice, budget=min(choice.budget, limit))


def _choose(tier: QualityTier, places: int, reused: int, probing: bool) -> TierChoice | None:
    one_place = places <= 1
    if tier == "fast":
        return _ONE_PLACE_FAST if one_place else _SEVERAL_PLACES_FAST
    if tier == "balanced":
        if one_place:
            return _ONE_PLACE
        share = _FEW_PLACES_BUDGET if places <= MOST_FEW else _MANY_PLACES_BUDGET
        return TierChoice(_PROBED if probing else _UNPROBED, max(share, min(MOST_SPENT, LEAST_ROW_TOKENS / reused)))
    return _ONE_PLACE_STRICT if one_place else None
