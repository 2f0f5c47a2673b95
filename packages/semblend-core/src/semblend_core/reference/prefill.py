"""What a prefill leaves behind: everything that decoding and scoring go on from."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from semblend_core.contract import Plan, TokenIds
from semblend_core.reference.workspace import Workspace


@dataclass(frozen=True, slots=True, eq=False)
class Prefill:
    """A prompt whose KV is complete. The workspace belongs to it; decoding and scoring write behind the prompt."""

    token_ids: TokenIds
    workspace: Workspace
    logits: Tensor
    """[vocabulary], float32: what follows the last prompt token."""
    seconds: float
    """Wall time from the call to the logits, placing of donor KV included, the device waited for."""
    computed_tokens: int
    """Tokens that went through the model."""
    reused_tokens: int
    """Tokens whose relocated KV was used."""
    exact_prefix_tokens: int = 0
    """Tokens whose KV came unmoved from an exact prefix."""

    @classmethod
    def of_plan(cls, plan: Plan, token_ids: TokenIds, workspace: Workspace, logits: Tensor, seconds: float) -> Prefill:
        """What carrying out ``plan`` left behind."""
        return cls(
            token_ids,
            workspace,
            logits,
            seconds,
            computed_tokens=plan.computed_tokens,
            reused_tokens=plan.reused_tokens,
            exact_prefix_tokens=plan.exact_prefix_tokens,
        )
