"""Rows: the tokens inside a claim that a step computes, each as one more sequence of the batch.

A row shares its request's blocks. It is written as an unfinished prefill, so it samples nothing and appears in no
output, and it is gone with the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

from semblend_vllm.claims import Claim


@dataclass
class RowRoom:
    """What is left of one step's batch. Set before the engine schedules, taken from as requests are admitted."""

    most_tokens: int
    """Tokens of a whole step."""
    most_sequences: int
    chunked: bool = True
    """Whether the rest of a prompt may be computed over several steps."""
    tokens: int = 0
    """Set aside in this step for rows, and not taken yet."""
    sequences: int = 0

    def take(self, claim: Claim) -> bool:
        if claim.row_tokens > self.tokens or len(claim.rows) > self.sequences:
            return False
        self.tokens -= claim.row_tokens
        self.sequences -= len(claim.rows)
        return True

    def tokens_for_rows(self, rest: int) -> int:
        """How many row tokens an otherwise empty step could hold for a request with ``rest`` tokens to compute."""
        return self.most_tokens - (1 if self.chunked else rest)
