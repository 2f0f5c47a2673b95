"""Rows: the tokens inside a claim that a step computes, each as one more sequence of the batch.

A row shares its request's blocks. It is written as an unfinished prefill, so it samples nothing and appears in no
output, and it is gone with the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

from semblend_core.serving import Claim

LONGEST_PAUSE = 15
"""Steps."""


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

    def for_rows(self, rest: int) -> tuple[int, int]:
        """Row tokens and rows that a step can hold beside other work, for a request with ``rest`` more tokens."""
        tokens = self.most_tokens // 2
        if not self.chunked and rest + tokens > self.most_tokens and rest < self.most_tokens:
            tokens = self.most_tokens - rest
        return max(tokens, 1), max(self.most_sequences // 2, 1)


@dataclass
class InVain:
    """Room that nobody took was kept in vain, as when the pool has no blocks: then it is kept ever more rarely."""

    _pause: int = 0
    _left: int = 0

    def note(self, kept: bool, admitted: bool) -> None:
        if admitted:
            self._pause = 0
        elif kept:
            self._pause = min(2 * self._pause + 1, LONGEST_PAUSE)
            self._left = self._pause

    def skip(self) -> bool:
        """Whether to keep nothing in this step."""
        self._left = max(self._left - 1, -1)
        return self._left >= 0
