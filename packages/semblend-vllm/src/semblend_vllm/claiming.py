"""What a quality tier makes of a plan, in this engine."""

from __future__ import annotations

from semblend_core import DeclineReason, Plan, Settings
from semblend_core.recompute import choose_policy
from semblend_vllm.claims import Claim, claim_of, over_steps, within_rows, without_rows
from semblend_vllm.rows import RowRoom


class Claiming:
    def __init__(self, settings: Settings, block_size: int, correcting: bool) -> None:
        self._tier, self._limit, self._block_size = settings.quality_tier, settings.recompute_limit, block_size
        self.correcting = correcting
        """Whether KV can be corrected inside the forward."""
        self.room: RowRoom | None = None
        """What a step has for rows; None where our scheduler is not in charge and rows cannot be had."""

    def claim_for(self, plan: Plan, *, may_wait: bool) -> tuple[Claim | None, DeclineReason]:
        """The claim; or None, and then the reason says why.

        ``may_wait``: rows that one step cannot hold may be computed over several, before the request is scheduled.
        Otherwise the claim ends where the first step is full, and the rest of the prompt is computed.
        """
        if self.room is None:
            return self._claim_without_rows(plan)
        choice = choose_policy(self._tier, plan, probing=False, limit=self._limit)
        if choice is None:
            return None, DeclineReason.QUALITY_TIER
        decided = choice.policy.plan(plan, budget=choice.budget, probe=None, block=1)
        if decided.correction is not None and not self.correcting:
            return None, DeclineReason.QUALITY_TIER
        claim = claim_of(decided.plan, self._block_size, decided.correction)
        if claim is None:
            return None, DeclineReason.TOO_FEW_TOKENS_SAVED
        most_tokens, most_rows = self.room.for_rows(plan.prompt_tokens - claim.end)
        if may_wait:
            return over_steps(claim, most_tokens, most_rows), DeclineReason.ALLOCATION_FAILED
        return within_rows(claim, most_tokens, most_rows, self._block_size), DeclineReason.ALLOCATION_FAILED

    def _claim_without_rows(self, plan: Plan) -> tuple[Claim | None, DeclineReason]:
        if self._tier == "strict":  # It promises seams, and those are rows.
            return None, DeclineReason.QUALITY_TIER
        claim = without_rows(claim_of(plan, self._block_size), self._block_size)
        return claim, DeclineReason.STRICT_PREFIX_BOUNDARY
