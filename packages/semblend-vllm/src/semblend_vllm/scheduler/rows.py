"""Rows: the tokens inside a claim that a step computes, each as one more sequence of the batch.

A row shares its request's blocks. It is written as an unfinished prefill, so it samples nothing and appears in no
output, and it is gone with the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from semblend_core.serving import Claim

LONGEST_PAUSE = 15
"""Steps."""
MOST_TOKENS_OF_ROWS = 2**21
"""Of the prompt up to each row's end, over all rows of one request: each row carries the blocks of these tokens to the
workers, and reads their KV."""


@dataclass
class RowRoom:
    """What is left of one step's batch. Set before the engine schedules, taken from as requests are admitted."""

    most_tokens: int
    """Tokens of a whole step."""
    most_sequences: int
    chunked: bool = True
    """Whether the rest of a prompt may be computed over several steps."""
    held_sequences: Callable[[], int] = lambda: 0
    """Places in the batch that are taken now, by requests that run."""
    hold_place: Callable[[], None] = lambda: None
    """A request without a place in this step will need one: let nobody else have it."""
    is_paused: Callable[[], bool] = lambda: False
    """Whether the engine shall compute nothing now."""
    tokens: int = 0
    """Set aside in this step for rows, and not taken yet."""
    sequences: int = 0

    def take(self, claim: Claim) -> bool:
        tokens, sequences = claim.first_row_tokens, len(claim.first_rows)
        if tokens > self.tokens or sequences > self.sequences:
            return False
        self.tokens -= tokens
        self.sequences -= sequences
        return True

    def most_rows_over_steps(self, cold_tokens: int) -> int:
        """Rows of a request that are worth holding its place for, where ``cold_tokens`` would be computed instead.

        It may hold the place for as many steps as they would take, and for a few more, the fewer the places are: others
        wait for it. The rest of its prompt takes one of these steps.
        """
        at_once = max(1, self.most_sequences - self.held_sequences())
        return at_once * max(1, self._steps(cold_tokens) - 1 + self.most_sequences // 12)

    def most_chosen_rows(self, cold_tokens: int) -> int:
        """The same for rows that a probe chooses: in fewer rows it chooses as many tokens.

        Alone in a batch they would make steps of their own, each of which takes as long as hundreds of tokens. Beside
        many others those steps are made anyway.
        """
        at_once = self.most_sequences - self.held_sequences() - 1  # Its own place is beside those of its rows.
        without_delay = max(at_once * max(1, self._steps(cold_tokens) - 1), self.most_sequences // 2, 1)
        return min(without_delay, self.most_rows_over_steps(cold_tokens))

    def _steps(self, tokens: int) -> int:
        return -(-tokens // self.most_tokens)

    @staticmethod
    def most_rows_of(prompt_tokens: int) -> int:
        """Rows of one prompt that workers can be sent without delay."""
        return max(1, MOST_TOKENS_OF_ROWS // max(1, prompt_tokens))


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
