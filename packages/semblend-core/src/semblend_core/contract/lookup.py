"""The lookup contract: what an engine asks before prefill and tells after it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from semblend_core.contract.namespace import Namespace
from semblend_core.contract.outcome import DeclineReason, Outcome, OutcomeKind, ProbeEnd
from semblend_core.contract.plan import Plan
from semblend_core.contract.self_test import SelfTestResult, SelfTestState
from semblend_core.contract.tokens import TokenIds, as_token_ids


@dataclass(frozen=True, slots=True, eq=False)
class Glimpse:
    """What a lookup would find, more or less, seen in a fraction of its time."""

    places: int
    """Pieces of earlier prompts that this one seems to hold."""
    share: float
    """Of the prompt, that they make up."""
    fingerprints: object = None
    """The provider's own. They spare it time if the lookup brings them back."""

    @property
    def kind(self) -> tuple[int, int]:
        """Prompts of one length and kind come to much the same plans."""
        return self.places.bit_length(), int(4 * self.share)


@dataclass(frozen=True, slots=True, eq=False)
class LookupRequest:
    """One new request, asked about after the engine's own prefix lookup and before allocation."""

    request_id: str
    """Unique among requests under way."""
    namespace: Namespace
    token_ids: TokenIds
    """The whole prompt. Read-only; writable input is copied. Borrowed for the call, not kept by the provider."""
    exact_prefix_tokens: int = 0
    """Leading tokens that the engine's own cache covers. SemBlend never takes them."""
    span_alignment: int = 1
    """Target starts and ends of spans are multiples of this; 1 where the engine writes single slots."""
    glimpse: Glimpse | None = None
    """What the provider saw at a glance, if it was asked."""

    def __post_init__(self) -> None:
        if not self.request_id:
            raise ValueError("request_id must not be empty")
        object.__setattr__(self, "token_ids", as_token_ids(self.token_ids))
        if not 0 <= self.exact_prefix_tokens <= self.token_ids.size:
            raise ValueError(
                f"exact_prefix_tokens {self.exact_prefix_tokens} is outside the prompt of {self.token_ids.size}"
            )
        if self.span_alignment < 1:
            raise ValueError(f"span_alignment must be at least 1, got {self.span_alignment}")


@dataclass(frozen=True, slots=True)
class LookupResult:
    """The answer: a plan, or the reason for none. Exactly one of the two."""

    plan: Plan | None
    reason: DeclineReason | None
    materialize: bool = True
    """False: a finding only (discovery-only mode): the engine prefills normally and reports DISCOVERY_ONLY."""
    elapsed_us: float | None = None
    """Time spent in the lookup, in microseconds; None when not measured."""
    cut_short: bool = False
    """Time was up before all donors were compared: what was found may not be all."""

    def __post_init__(self) -> None:
        if (self.plan is None) == (self.reason is None):
            raise ValueError("a lookup ends in a plan or in a reason, never in both or neither")

    @property
    def loadable_plan(self) -> Plan | None:
        """The plan if the engine may load it, else None."""
        return self.plan if self.materialize else None


@dataclass(frozen=True, slots=True, eq=False)
class DonorOffer:
    """A finished request whose KV is kept. Offered only once that KV is durable where it will be loaded from."""

    donor_id: str
    """Unique within the namespace; offering the same id with other tokens is refused."""
    namespace: Namespace
    token_ids: TokenIds
    """Tokens whose KV is kept, from position 0. Copied by the provider if it keeps them."""
    approximate_from: int | None = None
    """First position whose KV is approximate; only what lies before it can become a donor. None: all exact."""
    saved_ms: float = 0.0
    """What it takes the engine to compute it: the price of losing it. 0: not known."""

    def __post_init__(self) -> None:
        if not self.donor_id:
            raise ValueError("donor_id must not be empty")
        object.__setattr__(self, "token_ids", as_token_ids(self.token_ids))
        if self.approximate_from is not None and not 0 <= self.approximate_from <= self.token_ids.size:
            raise ValueError(
                f"approximate_from {self.approximate_from} is outside the donor's {self.token_ids.size} tokens"
            )

    @property
    def exact_token_ids(self) -> TokenIds:
        """The part that may become a donor: everything before the first approximate position."""
        return self.token_ids if self.approximate_from is None else self.token_ids[: self.approximate_from]


@dataclass(frozen=True, slots=True)
class OfferResult:
    """Whether the donor was kept, and how much of it."""

    registered_tokens: int
    """Tokens now discoverable; 0 when declined."""
    reason: DeclineReason | None = None
    """Why it was not kept; None when it was."""
    evicted: tuple[tuple[str, str], ...] = ()
    """Whom it cost their place: namespace digest and donor id of each. Nobody finds them again: drop their KV."""

    def __post_init__(self) -> None:
        if self.registered_tokens < 0 or (self.registered_tokens > 0) == (self.reason is not None):
            raise ValueError("an offer is either kept (registered_tokens > 0) or declined with a reason")


@dataclass(frozen=True, slots=True)
class ProviderStats:
    """Counters since start. Monotonic, except the gauges at the end, from ``donors`` on."""

    lookups: int = 0
    plans: int = 0
    """Lookups that ended in a plan: a finding, not reuse."""
    lookups_cut_short: int = 0
    """Lookups whose time was up before all donors were compared."""
    declines: Mapping[DeclineReason, int] = field(default_factory=dict)
    """By reason: DECLINED outcomes and refused offers. A refused lookup counts when its outcome is reported."""
    outcomes: Mapping[OutcomeKind, int] = field(default_factory=dict)
    confirmed_tokens: int = 0
    """Sum over MATERIALIZED outcomes: the only figure that may be called reuse."""
    alias_tokens: int = 0
    """Sum over ALIAS outcomes: KV of other tokens stood for these. Never part of ``confirmed_tokens``."""
    evicted_donors: int = 0
    regretted_donors: int = 0
    """Donors that had gone and were wanted again, as later donors show."""
    background_tokens: int = 0
    """Computed exactly while the engine had room, since many had asked for them or to compare an answer."""
    probes: Mapping[ProbeEnd, int] = field(default_factory=dict)
    """Requests for which a first step looked where their question looks, by what became of it."""
    donors: int = 0
    donor_bytes: int = 0
    """What the provider holds for its donors, tokens and index included."""
    pinned_requests: int = 0
    """Requests whose plan is out and whose outcome has not been reported."""
    self_test: SelfTestState = SelfTestState.PENDING
    """As the adapter noted it last."""


EvictionCause: TypeAlias = Literal["budget", "store", "expired", "replaced", "forgotten", "lost"]
"""Why a donor can be found no more: the donors' or its tenant's budget was full; the budget of the KV kept was; it was
too old; another holds its text; the engine dropped it; its bytes were gone or damaged."""


class SemanticLookupProvider(ABC):
    """Finds reusable spans for an engine. One instance serves all namespaces of a process.

    Threads: every method may be called from any thread. ``lookup`` is made for the scheduler's thread: it
    runs no model, touches no disk or network, and is bounded in time. No method raises for a fault of the
    provider itself: the fault is counted and the answer is a decline.

    Ownership: a returned plan pins its donors against eviction by budget until ``report_outcome`` names the
    request. A pin does not outlive ``forget_donor``: whoever forgets knows that the bytes are gone.
    """

    @abstractmethod
    def lookup(self, request: LookupRequest) -> LookupResult:
        """Find the plan for ``request``. The caller reports one outcome for it, plan or not, also after an abort."""

    def glimpse(self, request: LookupRequest) -> Glimpse | None:
        """Whether a lookup may be worth its time. It pins nothing and calls for no outcome. None: this provider cannot
        tell without a lookup."""
        return None

    @abstractmethod
    def offer_donor(self, offer: DonorOffer) -> OfferResult:
        """Make a finished request discoverable. Call it only when the donor's KV is durable. Any thread."""

    @abstractmethod
    def forget_donor(self, namespace: Namespace, donor_id: str) -> bool:
        """Make a donor undiscoverable, at once and for good. False if it was not known. Idempotent."""

    def lose_donor(self, namespace: Namespace, donor_id: str, cause: EvictionCause) -> bool:
        """``forget_donor`` for one that went by itself, so that it is on record why."""
        return self.forget_donor(namespace, donor_id)

    def forget_tenant(self, tenant: str) -> None:  # noqa: B027
        """Whoever calls it forgets every donor of the tenant by ``forget_donor`` too; this may be the quicker way.

        ``tenant``: the first 16 digits of its namespaces' digests. Memory may be given back later, by ``sweep``.
        """

    def sweep(self) -> None:  # noqa: B027
        """Overwrite and give back what was forgotten and still takes up memory. Any thread; may be slow."""

    def retire_donor(self, namespace: Namespace, donor_id: str) -> bool:
        """``forget_donor`` for one that another replaces: it stays as long as a plan needs it. Whether it is gone."""
        self.forget_donor(namespace, donor_id)
        return True

    def note_copied(self, namespace: Namespace, donor_id: str, tokens: int) -> None:  # noqa: B027
        """A newer donor holds the first ``tokens`` of this one too: it would be missed for the rest alone."""

    def donor_tokens(self, namespace: Namespace, donor_id: str) -> TokenIds | None:
        """The tokens of a donor that can be found. None: it is not known, or this provider does not give them back,
        and adapters that need them keep a copy of their own."""
        return None

    def note_unwanted(self, namespace: Namespace, donor_id: str, reason: DeclineReason) -> None:  # noqa: B027
        """A prompt that could have become a donor was not kept, for ``reason``. To be counted."""

    @abstractmethod
    def report_outcome(self, outcome: Outcome) -> None:
        """Release the request's pins and count what happened. A second report for the same lookup is ignored."""

    @abstractmethod
    def restrict_to_discovery(self, reason: str) -> None:
        """Stop handing out loadable plans for good, such as after a failed self-test. ``reason`` is logged."""

    def note_self_test(self, result: SelfTestResult) -> None:
        """What the adapter's self-test found, for the log and the gauge. The adapter itself waits for a pass."""
        if result.failed and result.final:
            self.restrict_to_discovery(result.says)

    def note_background(self, tokens: int) -> None:  # noqa: B027
        """The engine computed so many tokens exactly that no request had asked it to compute now."""

    def note_probe(self, end: ProbeEnd) -> None:  # noqa: B027
        """What became of a first step that was to show where a request's question looks. To be counted."""

    @abstractmethod
    def stats(self) -> ProviderStats:
        """A consistent snapshot of the counters."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise AssertionError if internal state is inconsistent. For tests; may be slow."""

    @abstractmethod
    def close(self) -> None:
        """Release everything. Later lookups are declined with SHUT_DOWN. Idempotent."""
