"""Names for KV that was computed behind approximate KV, so that later requests can go on from it.

Exact caches name KV by its tokens. Behind relocated KV that would be a lie: the same tokens have another KV there. Such
KV gets a name of its own, a lineage: made of the namespace, the tokens in front of it, what was relocated there, and a
key that only this process has. A later request with the same tokens finds it after the exact lookup, and takes it where
it lies. Who has another namespace, or wants no reuse, can neither find nor guess the name.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from semblend_core.contract import Namespace, TenantReport, TokenIds, tenant_of
from semblend_core.quality import kind_of
from semblend_core.recompute.reuse import places_of
from semblend_core.serving.claims import Claim

MOST_LINEAGES = 4096
"""The least recently used are forgotten: what they named is evicted by the engine as it grows old."""


Branches: TypeAlias = "dict[int, dict[bytes, list[Lineage]]]"


@dataclass(eq=False)
class Lineage:
    """KV from one position on, for whoever has the same tokens in front of it."""

    name: bytes
    """32 bytes that nobody outside can guess."""
    namespace: str
    """Digest."""
    start: int
    """Of whole pages. What lies before is exact, or of the parent."""
    path: bytes
    """Digest of the tokens before ``start``, and of the first few behind it."""
    parent: Lineage | None = None
    born: float = field(default_factory=time.time)
    """When the oldest came of what it is made of."""
    confirmed: bool = False
    """The bytes it grew from have landed."""
    places: int = 1
    """The most documents or passages that a claim took, of those it is behind."""
    spending: float = 1.0
    """The least that was computed afresh for one of the worst kind among them, by its tier's budget."""
    children: Branches = field(default_factory=dict, repr=False)
    """By start and path: what grew from it by further relocated KV."""

    @property
    def line(self) -> list[Lineage]:
        """It and all that it grew from, the first one last."""
        return [self, *(() if self.parent is None else self.parent.line)]


class LineageBook:
    """All lineages of an engine. Called on the scheduler's thread only."""

    TOLD_APART_BY = 32
    """Tokens behind a lineage's start. Thousands may begin behind one system prompt, each with another document: a
    request looks at those that go on as it does. Sharing fewer tokens would gain it nothing."""

    def __init__(
        self,
        max_age_s: float | None = None,
        born: Callable[[Namespace, Iterable[str]], float] = lambda namespace, donor_ids: time.time(),
        trusts: Callable[[Lineage], bool] = lambda lineage: True,
        now: Callable[[], float] = lambda: time.time(),
    ) -> None:
        """``born``: when the oldest of these donors came, whose KV is in what grows from it.

        ``trusts``: whether what a lineage holds is still good enough for others. ``now``: tells when it is too old.
        """
        self._max_age_s, self._born, self._trusts, self._now = max_age_s, born, trusts, now
        self._oldest = math.inf
        """No lineage is older."""
        self._key = os.urandom(32)
        self._roots: dict[str, Branches] = {}
        """By digest of the namespace, start and path."""
        self._known: OrderedDict[bytes, Lineage] = OrderedDict()
        """By name, the least recently used first."""
        self._spoiled = 0
        """How often KV that a name was given to did not come: such a name is never given again."""

    def __len__(self) -> int:
        return len(self._known)

    def grow(
        self, namespace: Namespace, token_ids: TokenIds, claim: Claim, start: int, parent: Lineage | None = None
    ) -> Lineage:
        """The lineage of what is computed behind ``claim``, from ``start`` on; behind ``parent``, if not exact KV.

        Equal prompts with equal claims have equal lineages, so they share what is computed once. One that nobody has
        confirmed yet is of no use to others.
        """
        path = digest_of(token_ids[: start + self.TOLD_APART_BY])
        grown_from = parent.name if parent is not None else namespace.digest.encode()
        content = repr((start, claim.spans, claim.rows, claim.correction, self._spoiled)).encode()
        name = hashlib.blake2b(grown_from + path + content, key=self._key, digest_size=32).digest()
        known = self._known.get(name)
        made = [(places_of(claim.spans), claim.spending)]
        if parent is not None:
            made.append((parent.places, parent.spending))
        places = max(places for places, _ in made)
        # What better kinds are behind was made with their own, and is judged where they are looked for.
        spending = min(spending for places_of_one, spending in made if kind_of(places_of_one) == kind_of(places))
        if known is not None:
            known.spending = max(known.spending, spending)  # The same is computed, so it is as good.
        else:
            born = self._born(namespace, claim.donor_ids)
            born = born if parent is None else min(born, parent.born)
            known = Lineage(name, namespace.digest, start, path, parent, born, places=places, spending=spending)
            self._oldest = min(self._oldest, born)
            self._known[name] = known
            branches = self._branches(known)
            branches.setdefault(start, {}).setdefault(path, []).append(known)
        self.use(known)
        while len(self._known) > MOST_LINEAGES:
            self.forget(next(iter(self._known.values())))
        return known

    def any_begins_within(self, namespace: Namespace, reach: int, parent: Lineage | None = None) -> bool:
        """Whether to look further, which takes tokens: none does where prompts share no opening with others."""
        return any(start <= reach for start in self._grown_from(namespace, parent))

    def behind(
        self,
        namespace: Namespace,
        token_ids: TokenIds,
        reach: int,
        parent: Lineage | None = None,
        *,
        trusted: bool = True,
    ) -> Iterator[Lineage]:
        """The confirmed lineages that begin within the first ``reach`` tokens, and go on with these very tokens.

        ``token_ids``: of the prompt, at least ``TOLD_APART_BY`` more than ``reach``. ``trusted``: only such as are good
        enough for others.
        """
        branches = self._grown_from(namespace, parent)
        ahead = self.TOLD_APART_BY
        for end, path in prefix_digests(token_ids, [start + ahead for start in branches if start <= reach]):
            for lineage in branches[end - ahead].get(path, ()):
                if lineage.confirmed and (not trusted or self._trusts(lineage)):
                    yield lineage

    def forget_expired(self) -> list[Lineage]:
        """Those that are too old, which nobody finds any more."""
        if self._max_age_s is None:
            return []
        too_old = self._now() - self._max_age_s
        if self._oldest >= too_old:
            return []
        expired = [lineage for lineage in self._known.values() if lineage.born < too_old]
        for lineage in expired:
            self.forget(lineage)
        self._oldest = min((lineage.born for lineage in self._known.values()), default=math.inf)
        return expired

    def use(self, lineage: Lineage) -> None:
        """It is the most recently used, and so is what it grew from."""
        step: Lineage | None = lineage
        while step is not None and self._knows(step):
            self._known.move_to_end(step.name)
            step = step.parent

    def forget(self, lineage: Lineage) -> None:
        """Nobody finds it any more, nor what grew from it."""
        if not self._knows(lineage):
            return
        del self._known[lineage.name]
        branches = self._branches(lineage)
        at_start = branches[lineage.start]
        at_start[lineage.path].remove(lineage)
        if not at_start[lineage.path]:
            del at_start[lineage.path]
        if not at_start:
            del branches[lineage.start]
        if not branches and lineage.parent is None:
            del self._roots[lineage.namespace]
        for paths in list(lineage.children.values()):
            for grown in [each for branch in paths.values() for each in branch]:
                self.forget(grown)

    def spoil(self, lineage: Lineage) -> None:
        """What it grew from never came, and the engine may still keep something under its name."""
        self._spoiled += 1
        self.forget(lineage)

    def forget_tenant(self, tenant: str) -> list[Lineage]:
        """Nobody finds a lineage of the tenant any more: those there were.

        Whoever is under way may still hold some of them, and grows nothing that can be found.
        """
        gone = [lineage for lineage in self._known.values() if tenant_of(lineage.namespace) == tenant]
        for lineage in gone:
            self.forget(lineage)
        for digest in [digest for digest in self._roots if tenant_of(digest) == tenant]:
            del self._roots[digest]
        return gone

    def held_by(self, tenant: str) -> TenantReport:
        return TenantReport(lineages=sum(tenant_of(each.namespace) == tenant for each in self._known.values()))

    def clear(self) -> None:
        """What they were computed with has changed."""
        self._roots.clear()
        self._known.clear()
        self._key = os.urandom(32)

    def _grown_from(self, namespace: Namespace, parent: Lineage | None = None) -> Branches:
        """By start; ``parent`` None: from exact tokens."""
        return self._roots.get(namespace.digest, {}) if parent is None else parent.children

    def _knows(self, lineage: Lineage) -> bool:
        """This very one: what is forgotten may grow again under the same name, while its old KV is still around."""
        return self._known.get(lineage.name) is lineage

    def _branches(self, lineage: Lineage) -> Branches:
        if lineage.parent is not None:
            return lineage.parent.children
        return self._roots.setdefault(lineage.namespace, {})


def digest_of(token_ids: TokenIds) -> bytes:
    return hashlib.blake2b(token_ids.data, digest_size=16).digest()


def prefix_digests(token_ids: TokenIds, lengths: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """``digest_of`` the first so many tokens, for each length, the shortest first. Each token is hashed once."""
    rolling, hashed = hashlib.blake2b(digest_size=16), 0
    for length in sorted(lengths):
        rolling.update(token_ids[hashed:length].data)
        hashed = length
        yield length, rolling.digest()
