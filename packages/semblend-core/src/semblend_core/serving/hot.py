"""Openings that many ask for, and that only a lineage holds: worth computing exactly, once, in the background."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from semblend_core.contract import TenantReport, TokenIds, tenant_of
from semblend_core.serving.lineage import Lineage, digest_of, prefix_digests

Note = TypeVar("Note")

MOST_PROMPTS = 64
"""Of one lineage, to tell who goes on from whom."""
MOST_LINEAGES = 1024
MOST_WAITING = 16
"""Openings that wait for a quiet moment. With more, the oldest are let go: others will ask for them again."""


@dataclass
class _Asked:
    prompts: OrderedDict[bytes, int] = field(default_factory=OrderedDict)
    """Digest of each prompt that was served of the lineage, and its length."""
    namespace: str = ""
    """Digest."""
    anew: int = 0
    """Prompts that began anew, since the opening last became hot."""
    shared: int = 0
    """How far these agreed with what the lineage held, at least."""
    wanted: int = 0
    """How often the opening became hot. With each time it takes twice as many prompts: it may not be to be had."""


@dataclass(frozen=True, eq=False)
class Opening(Generic[Note]):
    lineage: bytes
    """Name of the one that holds it."""
    namespace: str
    """Digest."""
    token_ids: TokenIds
    note: Note
    """What the engine needs besides the tokens to compute them, such as a salt."""


class HotOpenings(Generic[Note]):
    """Counts the requests of a lineage that do not go on from each other. Called on the scheduler's thread only."""

    def __init__(self, exact_after: int | None) -> None:
        """``exact_after``: the how-maniest request for an opening makes it exact; None: none does."""
        self._exact_after = exact_after
        self._asked: OrderedDict[bytes, _Asked] = OrderedDict()
        self._waiting: deque[Opening[Note]] = deque(maxlen=MOST_WAITING)

    def note(self, lineages: Iterable[Lineage], token_ids: TokenIds, shared_tokens: int, note: Note) -> None:
        """A request is served of ``lineages``, and shares so many tokens with what they held; 0: it is the first.

        Whoever has an earlier prompt as its beginning goes on in the same conversation, and asks for nothing new. An
        opening that is exact is not served of lineages: who asks again for one tells that it did not become exact, or
        was evicted since.
        """
        if self._exact_after is None:
            return
        for lineage in lineages:
            asked = self._asked.setdefault(lineage.name, _Asked(namespace=lineage.namespace))
            self._asked.move_to_end(lineage.name)
            if self._begins_anew(asked, token_ids):
                self._count(asked, shared_tokens or int(token_ids.size))
                if asked.anew >= self._exact_after << asked.wanted:
                    self._want(Opening(lineage.name, lineage.namespace, token_ids[: asked.shared], note))
                    asked.anew, asked.wanted = 0, asked.wanted + 1
            asked.prompts[digest_of(token_ids)] = int(token_ids.size)
            while len(asked.prompts) > MOST_PROMPTS:
                asked.prompts.popitem(last=False)
        while len(self._asked) > MOST_LINEAGES:
            self._asked.popitem(last=False)

    def next(self) -> Opening[Note] | None:
        """What to compute next, if the engine has time. It stays first until it is ``done``."""
        return self._waiting[0] if self._waiting else None

    def done(self, opening: Opening[Note]) -> None:
        if self._waiting and self._waiting[0] is opening:
            self._waiting.popleft()

    def forget_tenant(self, tenant: str) -> TenantReport:
        """Nothing of the tenant is counted or computed any more: what waited."""
        found = self.held_by(tenant)
        for name in [name for name, asked in self._asked.items() if tenant_of(asked.namespace) == tenant]:
            del self._asked[name]
        others = [opening for opening in self._waiting if tenant_of(opening.namespace) != tenant]
        self._waiting = deque(others, maxlen=MOST_WAITING)
        return found

    def held_by(self, tenant: str) -> TenantReport:
        return TenantReport(openings=sum(tenant_of(each.namespace) == tenant for each in self._waiting))

    def clear(self) -> None:
        self._asked.clear()
        self._waiting.clear()

    @staticmethod
    def _count(asked: _Asked, shared_tokens: int) -> None:
        asked.shared = min(asked.shared, shared_tokens) if asked.anew else shared_tokens
        asked.anew += 1

    def _want(self, opening: Opening[Note]) -> None:
        """Once: who asks for it while it waits for a quiet moment pushes no other away."""
        if all(other.lineage != opening.lineage for other in self._waiting):
            self._waiting.append(opening)

    @staticmethod
    def _begins_anew(asked: _Asked, token_ids: TokenIds) -> bool:
        earlier = {length for length in asked.prompts.values() if length < token_ids.size}
        return all(asked.prompts.get(digest) != length for length, digest in prefix_digests(token_ids, earlier))
