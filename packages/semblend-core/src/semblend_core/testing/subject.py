"""What the conformance suite needs from a system under test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from semblend_core.contract import Namespace, Outcome, Plan, ProviderStats, SemanticLookupProvider


class Fault(StrEnum):
    """Faults a subject can be told to suffer while it serves one request."""

    LOOKUP_ERROR = "lookup_error"
    """The provider raises inside ``lookup``."""
    DONOR_EVICTED = "donor_evicted"
    """The planned donors' KV vanishes between plan and load."""
    LOAD_ERROR = "load_error"
    """The copy of relocated KV fails half way."""
    CAPTURE_ERROR = "capture_error"
    """Keeping this request's own KV fails."""
    CAPTURE_STALLED = "capture_stalled"
    """Keeping this request's own KV does not finish before ``settle``."""


@dataclass(frozen=True, slots=True)
class Served:
    """One request as the subject served it."""

    request_id: str
    prompt: tuple[int, ...]
    outcome: Outcome
    exact_prefix_tokens: int
    """What the engine's own prefix cache covered."""
    plan: Plan | None = None
    """The plan handed to the engine, whether or not it could be carried out."""
    kv_token_ids: tuple[int, ...] | None = None
    """The token whose KV each position ended up with; None where the subject cannot tell."""


class Subject(ABC):
    """A serving system under test: an engine with its adapter, or a bare provider inside ``TokenEngine``.

    A subject starts empty: no donors, nothing in the exact cache.
    """

    block_size: int
    """Granularity of the engine's exact prefix cache, in tokens."""
    min_span_tokens: int
    """Shortest run the subject reuses."""
    has_lineages: bool = False
    """Whether a request may go on from what another computed behind relocated KV. Then it has ``change_weights`` and
    ``evict`` too."""

    exact_only: bool = False
    """Whether nothing but exact prefixes is loaded: what donors hold of a prompt from its first token on. Then it has
    ``evict`` too, and the suite leaves out what is about approximate KV."""

    @property
    @abstractmethod
    def provider(self) -> SemanticLookupProvider:
        """The provider in use, reachable in this process."""

    @abstractmethod
    def namespace(self, *, salt: str | None = None, adapter: str | None = None) -> Namespace:
        """The namespace that ``serve`` uses for the same arguments."""

    @abstractmethod
    def serve(
        self,
        prompt: Sequence[int],
        *,
        salt: str | None = None,
        adapter: str | None = None,
        reuse: bool = True,
        fault: Fault | None = None,
    ) -> Served:
        """Serve one prompt to its end. Must not raise for any ``fault``."""

    @abstractmethod
    def settle(self) -> None:
        """Return once all background capture has finished, stalled captures included."""

    @abstractmethod
    def fail_self_test(self) -> None:
        """Behave as if the model's self-test had failed at start."""

    @abstractmethod
    def stats(self) -> ProviderStats:
        """The provider's counters."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise AssertionError if slots, pins or donors do not add up."""

    def change_weights(self) -> None:
        """SemBlend hears that the weights have changed. The engine's own cache may be as it was."""
        raise NotImplementedError

    def evict(self, tokens: int) -> None:
        """The engine's cache lets go of so many tokens, as if to make room for others."""
        raise NotImplementedError
