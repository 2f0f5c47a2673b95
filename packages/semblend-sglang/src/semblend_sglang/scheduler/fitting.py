"""From a plan to what one of SGLang's batches can hold of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from semblend_core import DeclineReason, Plan, Settings, Span
from semblend_core.serving import Claim, CostGate, claim_by_tier
from semblend_core.serving.tree import TreeDonors
from semblend_sglang.scheduler.requests import SglangLife


@dataclass(frozen=True)
class BatchLimits:
    """What one of SGLang's batches can hold."""

    row_tokens: int
    """Of one request, beside at least a page of its own."""
    sequences: int
    """Rows included: SGLang's buffers have no room for more."""
    with_decoding: bool = False
    """Whether requests that decode share the batch of those that are prefilled."""


class Fitting:
    def __init__(
        self,
        settings: Settings,
        donors: TreeDonors,
        limits: BatchLimits,
        page_size: int,
        costs: CostGate,
        spending: Callable[[Sequence[Span]], float | None] = lambda spans: 1.0,
    ) -> None:
        """``spending``: what may be computed of such spans, by their tier's budget; None: they are declined."""
        self._spending = spending
        self._settings, self._donors, self._limits = settings, donors, limits
        self._page_size, self._costs = page_size, costs

    def claim_for(self, life: SglangLife, plan: Plan) -> Claim | DeclineReason:
        if not self._donors.are_of_same_tokens(life, plan):
            return DeclineReason.INTERNAL_ERROR
        life.first_span = plan.first_approximate_token
        return self._costs.choose(life.request_id, life.namespace, plan, self._within_batch)

    def _within_batch(self, plan: Plan, join_within: int) -> Claim | DeclineReason:
        # A correction would need a call inside every layer.
        claim = claim_by_tier(
            plan,
            self._settings.quality_tier,
            self._page_size,
            limit=self._settings.recompute_limit,
            correcting=None,
            join_within=join_within,
            spending=self._spending(plan.spans),
        )
        if isinstance(claim, DeclineReason):
            return claim
        fitting = claim.within(self._limits.row_tokens, self._limits.sequences - 1, self._page_size)
        return DeclineReason.TOO_FEW_TOKENS_SAVED if fitting is None else fitting.moved_only()
