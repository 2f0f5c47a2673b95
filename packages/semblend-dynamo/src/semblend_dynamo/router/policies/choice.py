"""The one interface of all policies, whatever carries the request to the replica."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from semblend_dynamo.router.asked import Asked
from semblend_dynamo.router.replicas import Replica


@dataclass(frozen=True)
class Choice:
    """Where a request should go, and why."""

    replica: Replica
    path: str
    """The rule that chose, as route headers name it."""
    reason: str
    similarity: float | None = None
    """Share of the prompt that the replica should hold; None: nobody looked."""
    held_tokens: int = 0
    """As a number of tokens or words."""


class Policy(ABC):
    """Called on the event loop's thread, but for ``landed``. ``replicas`` are never empty."""

    name: str

    @abstractmethod
    async def choose(self, asked: Asked, replicas: Sequence[Replica]) -> Choice: ...

    def landed(self, asked: Asked, replica: Replica) -> None:  # noqa: B027 - most have nothing to learn
        """``replica`` itself answered the request. May be called from any thread."""

    def ended(self, asked: Asked, choice: Choice, landed: Replica | None) -> None:  # noqa: B027
        """The request is over; once for every choice."""

    def forget(self, replica: Replica) -> None:  # noqa: B027
        """It was away: what it held is gone."""

    def close(self) -> None:  # noqa: B027
        """Let go of memory and threads."""
