"""From a plan to what one of SGLang's batches can hold of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from semblend_core import DeclineReason, Plan, Settings
from semblend_core.serving import PROBED_RUN, Claim, CostGate, ProbeTrust, claim_by_tier
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
        limits: BatchLimits,
        page_size: int,
        costs: CostGate,
        probe_layers: int | None,
        spending: Callable[[Plan], float | None] = lambda plan: 1.0,
        correcting: bool = True,
    ) -> None:
        """``probe_layers``: the model's layers, where it can be seen in them what a question attends to.

        ``spending``: what may be computed of a plan, by its tier's budget; None: it is declined. ``correcting``:
        whether the forward corrects what was moved; without that, what a tier would have corrected is declined.
        """
        self._spending, self._correcting = spending, correcting
        self._settings, self._limits = settings, limits
        self._page_size, self._costs = page_size, costs
        self._probe_layers, self.probes = probe_layers, ProbeTrust(settings)

    def claim_for(self, life: SglangLife, plan: Plan) -> Claim | DeclineReason:
        life.first_span = plan.first_approximate_token
        return self._costs.choose(life.request_id, life.namespace, plan, self._within_batch)

    def _within_batch(self, plan: Plan, join_within: int) -> Claim | DeclineReason:
        claim = claim_by_tier(
            plan,
            self._settings.quality_tier,
            self._page_size,
            limit=self._settings.recompute_limit,
            correcting=self._correcting,
            join_within=join_within,
            probe_layers=self._probe_layers if self.probes.is_on else None,
            block=PROBED_RUN,
            spending=self._spending(plan),
        )
        if isinstance(claim, DeclineReason):
            return claim
        if claim.probing is not None:
            claim = claim.up_to_question(self._page_size)
        fitting = within(claim, self._limits.row_tokens, self._limits.sequences - 1, self._page_size)
        if fitting is None:
            return DeclineReason.TOO_FEW_TOKENS_SAVED
        # A correction compares what rows compute with what was moved to their places; a probe looks at all of that.
        return fitting if fitting.correction or fitting.probing else fitting.moved_only()


def within(claim: Claim, most_tokens: int, most_rows: int, page_size: int) -> Claim | None:
    """As much of it as can be had with so many row tokens and rows. It is probed if that may choose so many tokens."""
    room_for_choice = claim.most_row_tokens <= most_tokens
    return (claim if room_for_choice else claim.unprobed()).within(most_tokens, most_rows, page_size)
