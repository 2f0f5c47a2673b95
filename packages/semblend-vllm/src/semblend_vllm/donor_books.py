"""Which donors exist: on their way, findable, or left by an earlier process. Kept by the scheduler's half."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable

from semblend_core import (
    AuditSink,
    DeclineReason,
    DonorCaptured,
    DonorOffer,
    EarlierDonors,
    Namespace,
    SemanticLookupProvider,
    TokenIds,
    donor_id_of,
)
from semblend_vllm.requests import Donor

MOST_LOST = 4096
LONGEST_CAPTURE_S = 10.0
"""A copy that takes longer is not waited for."""


class DonorBooks:
    def __init__(self, provider: SemanticLookupProvider, ranks: int, audit: AuditSink | None = None) -> None:
        self._provider, self._ranks, self._audit = provider, frozenset(range(ranks)), audit
        self._known: dict[Donor, Namespace] = {}
        """On their way or findable."""
        self._coming: dict[Donor, tuple[TokenIds, str]] = {}
        """Being copied, until they are durable at every rank; with the request that leaves them."""
        self._began = 0.0
        self._lost: OrderedDict[Donor, DeclineReason] = OrderedDict()
        """The last that went, and why."""
        self._durable: dict[Donor, frozenset[int]] = {}
        self._earlier: EarlierDonors[Namespace] = EarlierDonors()
        self._to_forget: list[tuple[Namespace, str]] = []
        self.generation = 0
        """Grows with every donor that can be found: a lookup is not repeated while it stands."""

    def knows(self, namespace: Namespace, donor_id: str) -> bool:
        return (namespace.digest, donor_id) in self._known

    def why_lost(self, namespace: Namespace, donor_id: str) -> DeclineReason | None:
        """Why a donor that was known is no more; None where it is known."""
        donor = (namespace.digest, donor_id)
        return None if donor in self._known else self._lost.get(donor, DeclineReason.DONOR_EVICTED)

    def begin_capture(self, namespace: Namespace, token_ids: TokenIds, request_id: str = "") -> str | None:
        """The id of a new donor, which ``request_id`` leaves; None where it is one already."""
        donor = (namespace.digest, donor_id_of(token_ids))
        if donor in self._known:
            return None
        self._known[donor], self._coming[donor] = namespace, (token_ids, request_id)
        self._began = time.monotonic()
        return donor[1]

    @property
    def any_coming(self) -> bool:
        """Whether a donor is being copied, and began to be not long ago."""
        return bool(self._coming) and time.monotonic() - self._began < LONGEST_CAPTURE_S

    def durable(self, donor: Donor, ranks: frozenset[int]) -> None:
        if donor not in self._coming:
            return  # Another rank has lost it meanwhile.
        self._durable[donor] = self._durable.get(donor, frozenset()) | ranks
        if self._durable[donor] >= self._ranks:
            del self._durable[donor]
            tokens, request_id = self._coming.pop(donor)
            namespace = self._known[donor]
            if self._audit is not None:
                self._audit.emit(
                    DonorCaptured(request_id=request_id, namespace=namespace, donor_id=donor[1], tokens=tokens.size)
                )
            self._offer(namespace, donor[1], tokens)

    def lost(self, donor: Donor, reason: DeclineReason) -> None:
        """At one rank at least it is not, or no longer, kept: at the others it is of no use."""
        self._lost[donor] = reason
        while len(self._lost) > MOST_LOST:
            self._lost.popitem(last=False)
        self._durable.pop(donor, None)
        self._coming.pop(donor, None)
        namespace = self._known.pop(donor, None)
        if namespace is not None:
            self._provider.forget_donor(namespace, donor[1])
            if len(self._ranks) > 1:
                self._to_forget.append((namespace, donor[1]))

    def forget_all(self) -> None:
        """Every donor of every tier: what they were computed with has changed."""
        for donor, namespace in self._known.items():
            self._provider.forget_donor(namespace, donor[1])
            self._to_forget.append((namespace, donor[1]))
        for books in (self._known, self._coming, self._durable, self._earlier):
            books.clear()
        self.generation += 1

    def recovered(self, donors: Iterable[tuple[str, str, TokenIds]]) -> None:
        # With several ranks each has files of its own, and which are whole at every rank is not known.
        if len(self._ranks) == 1:
            self._earlier.found(donors)

    def seen(self, namespace: Namespace) -> None:
        """A request of this namespace is here: donors that were left for it can be named now."""
        self._offer_again(self._earlier.seen(namespace.digest, namespace))

    def offer_some(self) -> None:
        self._offer_again(self._earlier.some())

    def _offer_again(self, donors: Iterable[tuple[Namespace, str, TokenIds]]) -> None:
        for namespace, donor_id, tokens in donors:
            if not self.knows(namespace, donor_id):
                self._known[namespace.digest, donor_id] = namespace
                self._offer(namespace, donor_id, tokens)

    def take_forgotten(self) -> list[tuple[Namespace, str]]:
        """What the workers need not keep any longer."""
        forgotten, self._to_forget = self._to_forget, []
        return forgotten

    def check_integrity(self) -> None:
        assert self._coming.keys() <= self._known.keys(), "a donor is being captured that nobody knows"
        assert self._durable.keys() <= self._coming.keys(), "a donor is durable in part that nobody waits for"

    def _offer(self, namespace: Namespace, donor_id: str, tokens: TokenIds) -> None:
        result = self._provider.offer_donor(DonorOffer(donor_id, namespace, tokens))
        unfindable = list(result.evicted) if result.reason is None else [*result.evicted, (namespace.digest, donor_id)]
        for donor in unfindable:
            owner = self._known.pop(donor, None)
            if owner is not None:  # Its bytes would only be in the way; and it may be captured again.
                self._to_forget.append((owner, donor[1]))
        self.generation += 1
