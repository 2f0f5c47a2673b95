"""Donors that an earlier process left on disk, until they can be found again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import ClassVar, Generic, TypeAlias, TypeVar

from semblend_core.contract import TokenIds

Owner = TypeVar("Owner")
Offer: TypeAlias = tuple[Owner, str, TokenIds]
"""Whose donor, its id and its tokens."""


class EarlierDonors(Generic[Owner]):
    """Files name a namespace by its digest alone, so their donors wait for a request of that namespace.

    Many may come at once, and offering takes time on the scheduler's thread: it is done a few at a time.
    """

    AT_FIRST: ClassVar[int] = 64
    """Offered when their namespace is first seen, the last used first."""
    AT_A_TIME: ClassVar[int] = 4
    """Of the others."""

    def __init__(self) -> None:
        self._unnamed: dict[str, list[tuple[str, TokenIds]]] = {}
        self._to_offer: deque[Offer[Owner]] = deque()

    def found(self, donors: Iterable[tuple[str, str, TokenIds]]) -> None:
        """Digest of the namespace, donor id and tokens of each, the next victim first."""
        for digest, donor_id, tokens in donors:
            self._unnamed.setdefault(digest, []).append((donor_id, tokens))

    def seen(self, digest: str, owner: Owner) -> list[Offer[Owner]]:
        """A request of the namespace ``digest`` is here, and ``owner`` is who its donors belong to: offer these."""
        left = self._unnamed.pop(digest, ())
        self._to_offer.extendleft((owner, donor_id, tokens) for donor_id, tokens in left)
        return self._take(self.AT_FIRST) if left else []

    def some(self) -> list[Offer[Owner]]:
        """Offer these next."""
        return self._take(self.AT_A_TIME)

    def clear(self) -> None:
        self._unnamed.clear()
        self._to_offer.clear()

    def _take(self, most: int) -> list[Offer[Owner]]:
        return [self._to_offer.popleft() for _ in range(min(most, len(self._to_offer)))]
