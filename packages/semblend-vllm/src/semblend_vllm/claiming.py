"""What a quality tier makes of a plan, in this engine."""

from __future__ import annotations

from semblend_core import DeclineReason, Plan, Settings
from semblend_core.recompute import choose_policy
from semblend_vllm.claims import Claim, claim_of, within_rows, without_rows
from semblend_vllm.rows import RowRoom


class Claiming:
    def __init__(self, settings: Settings, block_size: int, correcting: bool) -> None:
        self._tier, self._limit, self._block_size = settings.quality_tier, settings.recompute_limit, block_size
        self.correcting = correcting
        """Whether KV can be corrected inside the forward."""
        self.room: RowRoom | None = None
        """What a step has for rows; None where our scheduler is not in charge and rows cannot be had."""

    def claim_for(self, plan: Plan) -> tuple[Claim | None, DeclineReason]:
        """The claim; or None, and then the reason says why."""
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
        # Of rows that no step could hold, as many as one can: the rest of the prompt is computed.
        most = self.room.tokens_for_rows(plan.prompt_tokens - claim.end)
        fitting = within_rows(claim, most, self.room.most_sequences - 1, self._block_size)
        return fitting, DeclineReason.ALLOCATION_FAILED

    def _claim_without_rows(self, plan: Plan) -> tuple[Claim | None, DeclineReason]:
        if self._tier == "strict":  # It promises seams, and those are rows.
            return None, DeclineReason.QUALITY_TIER
        claim = without_rows(claim_of(plan, self._block_size), self._block_size)
        return claim, DeclineReason.STRICT_PREFIX_BOUNDARY
