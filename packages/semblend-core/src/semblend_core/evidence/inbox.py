"""What waits for the evidence thread: a bounded set of asks and offers."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

from semblend_core.contract import Namespace
from semblend_core.evidence.document import Document

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
    """Bounded. Asks go first, for a request waits; after four an offer has its turn. Not thread-safe."""

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
