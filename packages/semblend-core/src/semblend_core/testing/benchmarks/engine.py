"""What a benchmark asks of an engine. Each adapter's ``_engine_under_test`` answers it for its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Answer:
    request_id: str
    prompt_tokens: int
    cached_tokens: int
    """What the engine says it did not compute."""
    first_token_ms: float
    tokens: tuple[int, ...]
    top: tuple[dict[int, float], ...] = ()
    """Log-probabilities of each step's most likely tokens, where they were asked for."""

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens


class EngineUnderTest(Protocol):
    """A real engine with SemBlend in it."""

    @property
    def name(self) -> str:
        """The engine and its version."""

    @property
    def block_tokens(self) -> int:
        """What KV is allocated in."""

    def ask(
        self, prompts: Sequence[Sequence[int]], *, salt: str, reuse: bool = True, output_tokens: int = 1, top: int = 0
    ) -> list[Answer]:
        """All at once. ``top``: how many log-probabilities of each step."""

    def settle(self) -> None:
        """Let what was captured become donors."""

    def outcomes(self, answers: Sequence[Answer]) -> Counter[str]:
        """How these requests ended: by kind, and by reason where they were declined."""

    def confirmed_tokens(self) -> int:
        """Tokens that were reused so far."""

    def self_test(self) -> tuple[str, str]:
        """Its state, and what it said."""

    def most_kv_tokens(self) -> int:
        """Most tokens whose KV requests held at one time since the last call. What is only cached does not count."""
