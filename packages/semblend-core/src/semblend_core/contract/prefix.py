"""The prefix contract, in the shape proposed for SGLang (sgl-project/sglang#20806): one prefix per request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from semblend_core.contract.tokens import TokenIds, as_token_ids


@dataclass(frozen=True, slots=True, eq=False)
class SemanticPrefixResult:
    """Tokens under which the engine's own cache holds KV that may stand for the request's first tokens."""

    alternate_token_ids: TokenIds
    """What to match in the exact cache instead of the request's tokens. May be empty."""
    num_cached_tokens: int
    """How many leading request tokens that match covers; 0: nothing for a prefix-only backend."""
    skip_insert: bool
    """True: the engine must not publish this request's KV under its own tokens."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """For backends that can do more than a prefix: ``"plan"`` holds the ``Plan``. Never needed for correctness."""
    source_id: str | None = None
    """Donor the tokens come from; None when several do."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "alternate_token_ids", as_token_ids(self.alternate_token_ids))
        if not 0 <= self.num_cached_tokens <= self.alternate_token_ids.size:
            raise ValueError(
                f"num_cached_tokens {self.num_cached_tokens} is outside the "
                f"{self.alternate_token_ids.size} alternate tokens"
            )


class SemanticPrefixProvider(ABC):
    """Four calls around an engine's prefix cache. All on the scheduler's thread; none may block or raise."""

    @abstractmethod
    def on_init(self) -> None:
        """The engine is up. Called once, before any other call."""

    @abstractmethod
    def on_prefix_miss(self, rid: str, token_ids: Sequence[int]) -> SemanticPrefixResult | None:
        """The exact cache left tokens of request ``rid`` uncovered. None: prefill normally."""

    @abstractmethod
    def on_request_cached(self, rid: str, token_ids: Sequence[int]) -> None:
        """The KV of ``token_ids`` is in the engine's exact cache. Once per request, never for an approximate one."""

    @abstractmethod
    def on_shutdown(self) -> None:
        """The engine is going away. Idempotent."""
