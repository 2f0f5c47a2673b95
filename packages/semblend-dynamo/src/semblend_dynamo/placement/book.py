"""The donor book: prompts that were served, found by the tokens a new prompt shares with them."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import NamedTuple

from semblend_core import (
    DeclineReason,
    DonorOffer,
    LookupRequest,
    Namespace,
    Outcome,
    OutcomeKind,
    SemBlend,
    Settings,
    TokenIds,
    create_provider,
)
from semblend_dynamo.placement.findings import Finding, Piece

TWINS = 4
"""Other donors remembered for each one that hold a run of it too, perhaps on other workers."""


class DonorKey(NamedTuple):
    namespace_digest: str
    donor_id: str


@dataclass(frozen=True, slots=True)
class Added:
    """What adding a donor did."""

    kept: bool
    reason: DeclineReason | None = None
    """Why it was not kept."""
    evicted: tuple[DonorKey, ...] = ()
    """Donors that lost their place for it."""


@dataclass(frozen=True, slots=True)
class _Twin:
    """``donor_id`` holds, from ``start`` on, what the first donor holds in [first_start, first_start + length)."""

    donor_id: str
    start: int
    first_start: int
    length: int


class DonorBook:
    """Core's discovery over the donors of all namespaces: one namespace never sees another's.

    It keeps no KV and no place. Threads: every method from any thread. Memory is bounded by
    ``SEMBLEND_DONOR_INDEX_BYTES`` and ``SEMBLEND_MAX_DONORS``.
    """

    def __init__(self, settings: Settings | None = None, *, engine: str = "router") -> None:
        self._provider: SemBlend = create_provider(settings, engine=engine)
        self._lock = threading.Lock()
        self._donors: OrderedDict[DonorKey, Namespace] = OrderedDict()
        self._twins: dict[DonorKey, deque[_Twin]] = {}

    def __len__(self) -> int:
        return len(self._donors)

    @property
    def provider(self) -> SemBlend:
        return self._provider

    def find(self, request_id: str, namespace: Namespace, token_ids: TokenIds) -> Finding:
        """The pieces of the prompt that donors hold. ``report`` follows, also where nothing was found."""
        result = self._provider.lookup(LookupRequest(request_id, namespace, token_ids))
        size = int(token_ids.size)
        if result.plan is None:
            return Finding(request_id, size, reason=result.reason)
        pieces = [Piece(span.target_start, span.length, span.donor_id, span.donor_start) for span in result.plan.spans]
        with self._lock:
            twins = [twin for piece in pieces for twin in self._twins_of(namespace.digest, piece)]
        return Finding(request_id, size, tuple(pieces + twins))

    def report(self, request_id: str, *, placed: bool, reason: DeclineReason | None = None) -> None:
        """The end of what ``find`` began. A placement confirms no reuse; only an engine can."""
        if placed:
            outcome = Outcome(request_id, OutcomeKind.PLACEMENT)
        elif reason is not None:
            outcome = Outcome(request_id, OutcomeKind.DECLINED, reason=reason)
        else:
            outcome = Outcome(request_id, OutcomeKind.DISCOVERY_ONLY)
        self._provider.report_outcome(outcome)

    def add(self, namespace: Namespace, donor_id: str, token_ids: TokenIds, finding: Finding | None = None) -> Added:
        """Keep a prompt that a worker served. ``finding``: its own, so that donors which hold the same are linked."""
        result = self._provider.offer_donor(DonorOffer(donor_id, namespace, token_ids))
        evicted = tuple(DonorKey(digest, name) for digest, name in result.evicted)
        key = DonorKey(namespace.digest, donor_id)
        with self._lock:
            for gone in evicted:
                self._drop(gone)
            if result.reason is None:
                self._donors[key] = namespace
                self._link(key, finding)
        return Added(result.reason is None, result.reason, evicted)

    def tokens(self, namespace: Namespace, donor_id: str) -> TokenIds | None:
        """A donor's tokens; None: it is gone."""
        return self._provider.donor_tokens(namespace, donor_id)

    def forget(self, key: DonorKey) -> bool:
        """Whether it was known."""
        with self._lock:
            namespace = self._donors.get(key)
            self._drop(key)
        return namespace is not None and self._provider.forget_donor(namespace, key.donor_id)

    def known(self, tenant: str | None = None) -> tuple[DonorKey, ...]:
        """All donors, the oldest first, or those of one tenant (``Namespace.salt_digest``)."""
        with self._lock:
            return tuple(key for key in self._donors if tenant is None or key.namespace_digest.startswith(tenant))

    def namespace_of(self, key: DonorKey) -> Namespace | None:
        with self._lock:
            return self._donors.get(key)

    def check_integrity(self) -> None:
        self._provider.check_integrity()
        with self._lock:
            assert len(self._donors) == self._provider.stats().donors, "the book and the index differ"
            assert set(self._twins) <= set(self._donors), "twins of a donor that is gone"

    def close(self) -> None:
        with self._lock:
            self._donors.clear()
            self._twins.clear()
        self._provider.close()

    # Called with the lock held.

    def _drop(self, key: DonorKey) -> None:
        self._donors.pop(key, None)
        self._twins.pop(key, None)

    def _link(self, key: DonorKey, finding: Finding | None) -> None:
        """Both ways: a later lookup may find either of the two."""
        for piece in finding.pieces if finding else ():
            other = DonorKey(key.namespace_digest, piece.donor_id)
            if other in self._donors and other != key:
                here, there, length = piece.target_start, piece.donor_start, piece.length
                self._twins.setdefault(other, deque(maxlen=TWINS)).append(_Twin(key.donor_id, here, there, length))
                self._twins.setdefault(key, deque(maxlen=TWINS)).append(_Twin(piece.donor_id, there, here, length))

    def _twins_of(self, digest: str, piece: Piece) -> list[Piece]:
        found = []
        for twin in self._twins.get(DonorKey(digest, piece.donor_id), ()):
            begin = max(piece.donor_start, twin.first_start)
            end = min(piece.donor_end, twin.first_start + twin.length)
            if begin < end and DonorKey(digest, twin.donor_id) in self._donors:
                target = piece.target_start + begin - piece.donor_start
                found.append(Piece(target, end - begin, twin.donor_id, twin.start + begin - twin.first_start))
        return found
