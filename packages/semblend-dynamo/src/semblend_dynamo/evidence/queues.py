"""What waits for the evidence thread, and what it found: both bounded. Not thread-safe, the worker holds its lock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from semblend_core import Namespace
from semblend_dynamo.evidence.embedder import Document

DonorKey: TypeAlias = tuple[str, str]
"""(namespace digest, donor id)"""

_ASKS_IN_A_ROW = 4


@dataclass(frozen=True, slots=True)
class Offer:
    """A donor to embed and index."""

    namespace: Namespace
    donor_id: str
    document: Document
    ticket: int
    """Tells this offer from an earlier or later one of the same donor."""

    @property
    def key(self) -> DonorKey:
        return self.namespace.digest, self.donor_id


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to compare with the donors."""

    request_id: str
    namespace: Namespace
    document: Document


class Inbox:
    """Bounded. Asks go first, for a request waits; after four an offer has its turn."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._asks: OrderedDict[str, Ask] = OrderedDict()
        self._offers: OrderedDict[DonorKey, Offer] = OrderedDict()
        self._asks_in_a_row = 0

    def __len__(self) -> int:
        return len(self._asks) + len(self._offers)

    def put_ask(self, ask: Ask) -> bool:
        """False when full. A second ask of a waiting request takes the first one's place."""
        if ask.request_id not in self._asks and len(self) >= self._limit:
            return False
        self._asks[ask.request_id] = ask
        return True

    def put_offer(self, offer: Offer) -> bool:
        """False when full. A second offer of a waiting donor takes the first one's place."""
        if offer.key not in self._offers and len(self) >= self._limit:
            return False
        self._offers[offer.key] = offer
        return True

    def discard_offer(self, key: DonorKey) -> None:
        self._offers.pop(key, None)

    def take(self) -> Ask | Offer | None:
        """The next one, or None."""
        if self._asks and not (self._offers and self._asks_in_a_row >= _ASKS_IN_A_ROW):
            self._asks_in_a_row += 1
            return self._asks.popitem(last=False)[1]
        self._asks_in_a_row = 0
        return self._offers.popitem(last=False)[1] if self._offers else None

    def clear(self) -> None:
        self._asks.clear()
        self._offers.clear()


@dataclass(frozen=True, slots=True)
class Evidence:
    """Similarity without reuse: a hint for routing, never a licence to load."""

    donor_id: str
    similarity: float
    """In [0, 1]; what it measures depends on ``method``."""
    method: str
    """The name of the embedder: ``"minilm"`` or ``"jaccard"``."""

    def __post_init__(self) -> None:
        if not self.donor_id:
            raise ValueError("evidence names its donor: donor_id must not be empty")
        if not 0 <= self.similarity <= 1:
            raise ValueError(f"similarity is in [0, 1], got {self.similarity}")


@dataclass(frozen=True, slots=True)
class Compared:
    """Evidence and the offer it came from, so that it can be withdrawn when that donor is forgotten."""

    evidence: Evidence
    key: DonorKey
    ticket: int


class Answers:
    """Bounded in number and in age; the oldest goes first."""

    def __init__(self, limit: int, lifetime_s: float, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, tuple[Compared, ...]]] = OrderedDict()
        self.expired = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, request_id: str, findings: tuple[Compared, ...]) -> None:
        self.discard(request_id)
        self._kept[request_id] = (self._clock() + self._lifetime_s, findings)
        self._expire()

    def get(self, request_id: str) -> tuple[Compared, ...] | None:
        self._expire()
        kept = self._kept.get(request_id)
        return None if kept is None else kept[1]

    def discard(self, request_id: str) -> None:
        self._kept.pop(request_id, None)

    def _expire(self) -> None:
        # Insertion order is order of age, so the first one tells.
        while self._kept:
            deadline, _ = next(iter(self._kept.values()))
            if len(self._kept) <= self._limit and deadline > self._clock():
                return
            self._kept.popitem(last=False)
            self.expired += 1
