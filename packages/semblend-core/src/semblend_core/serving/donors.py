"""Which donors exist: findable, or lost."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeAlias, TypeVar

from semblend_core.contract import (
    DeclineReason,
    DonorOffer,
    EvictionCause,
    Namespace,
    SemanticLookupProvider,
    TenantReport,
    TokenIds,
    donor_id_of,
    tenant_of,
)
from semblend_core.serving.ages import DonorAges, Limits
from semblend_core.serving.containment import contain
from semblend_core.serving.prefixes import DonorName, DonorPrefixes

Note = TypeVar("Note")

_FOR_NOW = (DeclineReason.DISABLED, DeclineReason.SHUT_DOWN)
"""Reasons that say nothing of the donor: its bytes may be of use to a later process."""
MOST_LOST = 4096
AT_A_TIME = 16
"""Donors that are forgotten when one comes for which there is no room. It may be a thousand times as long as they are,
and each takes up to half a millisecond of the scheduler's."""
MOST_COPIES = 64
"""Donors that are looked at when one comes that begins as they do. Those with most in common are the first."""
LEAST_COPIED = 0.1
"""Share of a donor below which what it has in common with another does not count."""


Price: TypeAlias = Callable[[int], float]
"""Milliseconds that the engine takes to compute so many tokens; 0: not known."""


def not_known(tokens: int) -> float:
    """The price of donors in engines whose steps nobody times."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Donor(Generic[Note]):
    namespace: Namespace
    donor_id: str
    note: Note
    """What the adapter needs to find its KV again."""
    tokens: int = 0

    @property
    def name(self) -> DonorName:
        return (self.namespace.digest, self.donor_id)


class DonorBook(Generic[Note]):
    """The donors that can be found, least recently used first."""

    def __init__(
        self,
        provider: SemanticLookupProvider,
        most: int,
        gone: Callable[[Donor[Note]], None],
        limits: Limits = Limits(),  # noqa: B008 - frozen
        price: Price = not_known,
        copied: Callable[[Donor[Note], int], None] = lambda donor, tokens: None,
        most_tokens: int | None = None,
    ) -> None:
        """``gone`` is told of each that can be found no more: its bytes would only be in the way.

        ``copied`` is told how many of a donor's first tokens a newer one holds too. ``most_tokens``: what an engine
        can hold that does not say which donors it evicts, and holds shared beginnings once. If there are more, the
        least recently used are taken to be gone, some at a time.
        """
        self._provider, self._most, self._gone, self._limits = provider, most, gone, limits
        self.price, self._copied = price, copied
        self._ages = DonorAges()
        self._most_tokens = most_tokens
        self._donors: OrderedDict[DonorName, Donor[Note]] = OrderedDict()
        self._lost: OrderedDict[DonorName, DeclineReason] = OrderedDict()
        """The last that went, and why."""
        self.prefixes = DonorPrefixes()
        """Of the donors that can be found, and of those on their way."""
        self._replaced: dict[DonorName, DonorName] = {}
        """Donors that another, the second, holds from its beginning on. They go when no plan needs them any more."""
        self.generation = 0
        """Grows with every donor that can be found: a lookup that found nothing is not repeated while it stands."""

    def __len__(self) -> int:
        return len(self._donors)

    def __contains__(self, name: DonorName) -> bool:
        return name in self._donors

    def get(self, namespace: Namespace, donor_id: str) -> Donor[Note] | None:
        """Counts as a use."""
        name = (namespace.digest, donor_id)
        donor = self._donors.get(name)
        if donor is not None:
            self._donors.move_to_end(name)
        return donor

    def use_holder(self, namespace: Namespace, token_ids: TokenIds, least: int) -> None:
        """The engine was asked for these: a use of the donor that begins with most of them, if with ``least``."""
        for name, held in islice(self.prefixes.holders(namespace.digest, token_ids), 1):
            if held >= least and name in self._donors:
                self._donors.move_to_end(name)

    def offer(
        self,
        namespace: Namespace,
        token_ids: TokenIds,
        note: Note,
        donor_id: str | None = None,
        born: float | None = None,
    ) -> Donor[Note] | None:
        """Let a donor be found whose KV is durable. None where it is known already, or not wanted.

        ``donor_id``: its name, if that is known already; it is made of the tokens. ``born``: when it was captured, if
        not now.
        """
        donor = Donor(namespace, donor_id or donor_id_of(token_ids), note, int(token_ids.size))
        if donor.name in self._donors:
            return None
        self.make_room(namespace, donor.tokens)
        offer = DonorOffer(donor.donor_id, namespace, token_ids, saved_ms=self.price(donor.tokens))
        result = self._provider.offer_donor(offer)
        for name in result.evicted:
            self._remove(name)
        if result.reason is not None:
            self.prefixes.discard(donor.name)
            if result.reason not in _FOR_NOW:
                self._gone(donor)
            return None
        self.generation += 1
        self._donors[donor.name] = donor
        self._ages.add(donor.name, donor.tokens, time.time() if born is None else born)
        self.prefixes.add(donor.name, token_ids)
        self._note_copies(donor, token_ids)
        while len(self._donors) > self._most:
            self.drop(next(iter(self._donors)), cause="budget")
        self._forget_some_beyond_room()
        return donor

    def replace_prefixes(self, donor: Donor[Note], token_ids: TokenIds) -> None:
        """This donor's KV is safe: those that are its beginning are of no more use."""
        self._replaced.update(dict.fromkeys(self.prefixes.replaced_by(donor.name, token_ids), donor.name))
        for name, longer in list(self._replaced.items()):
            shorter = self._donors.get(name)  # None: it went meanwhile, or is on its way.
            if shorter is None or longer not in self._donors:
                del self._replaced[name]  # Where the longer one went first, nobody else holds what it held.
            elif self._provider.retire_donor(shorter.namespace, shorter.donor_id):
                del self._replaced[name]
                self._remove(name)

    def drop(
        self,
        name: DonorName,
        why: DeclineReason = DeclineReason.DONOR_EVICTED,
        cause: EvictionCause = "lost",
    ) -> None:
        """Its KV is not, or no longer, kept. ``why``: for those that count on it; ``cause``: for the record."""
        self._lost[name] = why
        while len(self._lost) > MOST_LOST:
            self._lost.popitem(last=False)
        donor = self._remove(name)
        if donor is not None:
            contain("forgetting a donor", self._provider.lose_donor, donor.namespace, donor.donor_id, cause)

    def why_lost(self, namespace: Namespace, donor_id: str) -> DeclineReason | None:
        """Why a donor that was known is no more; None where it is known."""
        name = (namespace.digest, donor_id)
        return None if name in self._donors else self._lost.get(name, DeclineReason.DONOR_EVICTED)

    def clear(self) -> None:
        """Every donor of every tier: what they were computed with has changed."""
        for name in list(self._donors):
            self.drop(name, cause="forgotten")
        self.generation += 1

    def forget_tenant(self, tenant: str) -> TenantReport:
        """No donor of the tenant is found any more: what there was. ``gone`` is not told: all of a tenant's KV goes."""
        names = self._ages.names_of(tenant)
        found = self.held_by(tenant)
        contain("forgetting a tenant", self._provider.forget_tenant, tenant)
        for name in names:
            donor = self._strike(name)
            if donor is not None:
                contain("forgetting a donor", self._provider.forget_donor, donor.namespace, donor.donor_id)
        for book in (self._lost, self._replaced):
            drop_tenant(book, tenant)
        self.generation += 1
        return found

    def held_by(self, tenant: str) -> TenantReport:
        return self._ages.report(tenant, time.time())

    def make_room(self, namespace: Namespace, tokens: int) -> None:
        """So many more tokens of a tenant are about to come: its own oldest donors go where it would have too many."""
        most = self._limits.tenant_tokens
        while most is not None and self._ages.tokens_of(namespace.salt_digest) + tokens > most:
            oldest = self._ages.oldest_of(namespace.salt_digest)
            if oldest is None:
                return
            self.drop(oldest, cause="budget")

    def drop_expired(self) -> None:
        """Donors that are too old: before anybody is served."""
        too_old = self._too_old()
        while too_old is not None and (name := self._ages.born_before(too_old)) is not None:
            self.drop(name, cause="expired")

    def is_expired(self, name: DonorName) -> bool:
        too_old, born = self._too_old(), self._ages.born(name)
        return too_old is not None and born is not None and born < too_old

    def born(self, namespace: Namespace, donor_ids: Iterable[str]) -> float:
        """When the oldest of these came. One that is not known came now."""
        known = [self._ages.born((namespace.digest, donor_id)) for donor_id in donor_ids]
        return min((born for born in known if born is not None), default=time.time())

    def _note_copies(self, newer: Donor[Note], token_ids: TokenIds) -> None:
        """Those that begin as the newer one does are worth only what they go on with."""
        holders = self.prefixes.holders(newer.namespace.digest, token_ids)
        for name, held in islice(holders, MOST_COPIES):
            donor = self._donors.get(name)
            if donor is not None and donor is not newer and held >= LEAST_COPIED * donor.tokens:
                contain("noting a copy", self._provider.note_copied, donor.namespace, donor.donor_id, held)
                self._copied(donor, held)

    def _forget_some_beyond_room(self) -> None:
        """The others go with the next that come: whether a donor is there is asked before it is used."""
        for _ in range(min(AT_A_TIME, len(self._donors) - 1)):
            if self._most_tokens is None or self.prefixes.tokens <= self._most_tokens:
                return
            self.drop(next(iter(self._donors)))

    def _too_old(self) -> float | None:
        """Who came before is; None: nobody."""
        return None if self._limits.max_age_s is None else time.time() - self._limits.max_age_s

    def _remove(self, name: DonorName) -> Donor[Note] | None:
        donor = self._strike(name)
        if donor is not None:
            self._gone(donor)
        return donor

    def _strike(self, name: DonorName) -> Donor[Note] | None:
        """Out of everything that is known of donors here."""
        self.prefixes.discard(name)
        self._ages.remove(name)
        return self._donors.pop(name, None)


def drop_tenant(names: MutableMapping[DonorName, Any], tenant: str) -> None:
    for name in [name for name in names if tenant_of(name[0]) == tenant]:
        del names[name]
