"""Donors that an earlier process left on disk, until they can be found again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import ClassVar, Generic, TypeAlias, TypeVar

from semblend_core.contract import TenantReport, TokenIds, tenant_of

Owner = TypeVar("Owner")
Offer: TypeAlias = tuple[Owner, str, TokenIds, float]
"""Whose donor, its id, its tokens, and when it was captured."""
LeftDonor: TypeAlias = tuple[str, str, TokenIds, float]
"""Digest of the namespace, donor id, tokens and time of capture."""


class LeftAtRanks:
    """Each rank has files of its own. A donor is whole where all ranks found their part of it.

    A part without the others stays where it is: it becomes whole when its prompt comes again, or is evicted.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._parts: dict[int, dict[tuple[str, str], LeftDonor]] = {}
        """Of the ranks that have told, until all have."""

    def told(self, found: Mapping[int, Iterable[LeftDonor]]) -> list[LeftDonor]:
        """What these ranks found. Once all have told: what is whole, in the first rank's order."""
        for rank, donors in found.items():
            self._parts[rank] = {(donor[0], donor[1]): donor for donor in donors}
        if len(self._parts) < self._ranks:
            return []
        first, *others = (part for _, part in sorted(self._parts.items()))
        self._parts = {}
        return [donor for name, donor in first.items() if all(name in other for other in others)]

    def discard(self, name: tuple[str, str]) -> None:
        """One rank has lost its part while others were still looking."""
        for part in self._parts.values():
            part.pop(name, None)

    def forget_tenant(self, tenant: str) -> None:
        for rank, part in self._parts.items():
            self._parts[rank] = {name: donor for name, donor in part.items() if tenant_of(name[0]) != tenant}

    def clear(self) -> None:
        """What was left is of no use. Ranks that are still looking may find more of it."""
        for part in self._parts.values():
            part.clear()


class EarlierDonors(Generic[Owner]):
    """Files name a namespace by its digest alone, so their donors wait for a request of that namespace.

    Many may come at once, and offering takes time on the scheduler's thread: it is done a few at a time.
    """

    AT_FIRST: ClassVar[int] = 64
    """Offered when their namespace is first seen, the last used first."""
    AT_A_TIME: ClassVar[int] = 4
    """Of the others."""

    def __init__(self) -> None:
        self._unnamed: dict[str, list[tuple[str, TokenIds, float]]] = {}
        self._to_offer: deque[tuple[str, Offer[Owner]]] = deque()
        """With the digest of its namespace."""
        self._there: set[tuple[str, str]] = set()
        """Digest and donor id of those that wait and were not lost meanwhile."""
        self._purged: set[str] = set()
        """Tenants whose earlier donors are of no use, also those that are still to be told of."""

    def found(self, donors: Iterable[LeftDonor]) -> None:
        """The next victim first."""
        for digest, donor_id, tokens, born in donors:
            if tenant_of(digest) in self._purged:
                continue
            self._unnamed.setdefault(digest, []).append((donor_id, tokens, born))
            self._there.add((digest, donor_id))

    def seen(self, digest: str, owner: Owner) -> list[Offer[Owner]]:
        """A request of the namespace ``digest`` is here, and ``owner`` is who its donors belong to: offer these."""
        left = self._unnamed.pop(digest, ())
        self._to_offer.extendleft((digest, (owner, *donor)) for donor in left)
        return self._take(self.AT_FIRST) if left else []

    def some(self) -> list[Offer[Owner]]:
        """Offer these next."""
        return self._take(self.AT_A_TIME)

    def discard(self, name: tuple[str, str]) -> None:
        """Its bytes are gone before anybody asked for it."""
        self._there.discard(name)

    def forget_tenant(self, tenant: str) -> TenantReport:
        """Nothing that was left for the tenant is offered, now or later: what waited."""
        found = self.held_by(tenant)
        self._purged.add(tenant)
        self._unnamed = {digest: left for digest, left in self._unnamed.items() if tenant_of(digest) != tenant}
        self._to_offer = deque(offer for offer in self._to_offer if tenant_of(offer[0]) != tenant)
        self._there = {name for name in self._there if tenant_of(name[0]) != tenant}
        return found

    def held_by(self, tenant: str) -> TenantReport:
        waiting = [(digest, donor) for digest, donors in self._unnamed.items() for donor in donors]
        waiting += [(digest, (donor_id, tokens, born)) for digest, (_, donor_id, tokens, born) in self._to_offer]
        theirs = [
            (int(tokens.size), born)
            for digest, (donor_id, tokens, born) in waiting
            if tenant_of(digest) == tenant and (digest, donor_id) in self._there
        ]
        oldest = min((born for _, born in theirs), default=None)
        return TenantReport(
            donors=len(theirs),
            tokens=sum(size for size, _ in theirs),
            oldest_s=None if oldest is None else max(0.0, time.time() - oldest),
        )

    def clear(self) -> None:
        self._unnamed.clear()
        self._to_offer.clear()
        self._there.clear()

    def _take(self, most: int) -> list[Offer[Owner]]:
        taken: list[Offer[Owner]] = []
        while self._to_offer and len(taken) < most:
            digest, offer = self._to_offer.popleft()
            if (digest, offer[1]) in self._there:
                self._there.remove((digest, offer[1]))
                taken.append(offer)
        return taken
