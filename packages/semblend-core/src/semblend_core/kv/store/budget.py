"""The byte budget of one tier and who goes when it is full."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import cast

from semblend_core.contract import TokenIds
from semblend_core.eviction import Entry as Described
from semblend_core.eviction import policy_named
from semblend_core.kv.store.kv_spec import KvSpec
from semblend_core.kv.store.vocabulary import DonorKey, Tier


@dataclass(slots=True, eq=False)
class Copy:
    """A donor's bytes in one tier."""

    entry: Entry
    tier: Tier
    storage: object
    charge: int
    pins: int = 0
    """Handles, loads and moves that read these bytes; they are freed when nobody does."""
    listed: bool = True
    """False once it was evicted or forgotten: nobody new may pin it."""
    scrub: bool = False
    """Its bytes are overwritten before their memory is lent again."""


@dataclass(slots=True, eq=False)
class Entry:
    """One donor, wherever it lies."""

    key: DonorKey
    spec: KvSpec
    token_ids: TokenIds | None
    born: int = field(default_factory=time.time_ns)
    """When it was captured, in nanoseconds since 1970."""
    saved_ms: float = 0.0
    """What it takes to compute it; 0: not known, as after a restart."""
    copies: dict[Tier, Copy] = field(default_factory=dict)

    @property
    def fastest(self) -> Copy:
        return next(self.copies[tier] for tier in Tier if tier in self.copies)


class TierBudget:
    """Charges are taken before bytes are written and given back after they are freed. Not thread-safe."""

    def __init__(self, limit: int, eviction: str) -> None:
        self.limit = limit
        self.used = 0
        self.evictable = 0
        """Charge of the listed copies that nobody reads."""
        self.pinned_donors = 0
        self.copies: dict[DonorKey, Copy] = {}
        # Which donors come in is decided before they do.
        self.policy = policy_named(eviction, capacity=limit, may_refuse=False)

    def reserve(self, charge: int) -> bool:
        if self.used + charge > self.limit:
            return False
        self.used += charge
        return True

    def release(self, charge: int) -> None:
        self.used -= charge

    def add(self, copy: Copy) -> None:
        """List a copy whose charge is reserved."""
        self.copies[copy.entry.key] = copy
        self.evictable += copy.charge
        tokens = copy.entry.spec.tokens
        price = copy.entry.saved_ms
        described = Described(tokens=tokens, bytes=copy.charge, prompt_tokens=tokens, saved_ms=price)
        self.policy.admit(copy.entry.key, described, time.monotonic())

    def remove(self, copy: Copy, *, evicted: bool = False) -> None:
        """Unlist a copy. Its charge stays until its bytes are freed. ``evicted``: for want of room."""
        del self.copies[copy.entry.key]
        self.policy.remove(copy.entry.key, evicted=evicted)
        self._note(copy, -1)
        copy.listed = False

    def pin(self, copy: Copy) -> None:
        self._note(copy, -1)
        copy.pins += 1
        self._note(copy, 1)

    def unpin(self, copy: Copy) -> None:
        self._note(copy, -1)
        copy.pins -= 1
        self._note(copy, 1)

    def victim(self, charge: int) -> Copy | None:
        """Whom to evict for ``charge`` more bytes; None when that much cannot be freed.

        What can never fit beside the pinned donors must not cost the others their place.
        """
        if charge > self.limit - self.used + self.evictable:
            return None
        key = self.policy.victim(self._is_pinned)
        return None if key is None else self.copies[cast(DonorKey, key)]

    def check_integrity(self) -> None:
        assert self.used <= self.limit, "over the byte budget"
        assert sum(copy.charge for copy in self.copies.values()) <= self.used, "a donor is not charged for"
        assert set(self.policy) == set(self.copies), "the eviction policy lost a donor"
        self.policy.check_integrity()
        assert all(copy.pins >= 0 for copy in self.copies.values()), "a donor is unpinned twice"
        assert all(copy.listed for copy in self.copies.values()), "an unlisted donor is listed"
        pinned = [copy.charge for copy in self.copies.values() if copy.pins]
        assert len(pinned) == self.pinned_donors, "the pinned donors do not add up"
        assert sum(copy.charge for copy in self.copies.values()) == self.evictable + sum(pinned), "nor do the others"

    def _is_pinned(self, key: Hashable) -> bool:
        return self.copies[cast(DonorKey, key)].pins > 0

    def _note(self, copy: Copy, sign: int) -> None:
        if copy.listed and copy.pins:
            self.pinned_donors += sign
        elif copy.listed:
            self.evictable += sign * copy.charge
