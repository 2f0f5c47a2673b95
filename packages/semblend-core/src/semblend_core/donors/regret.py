"""Donors that went and were wanted again: what a budget, or the choice of who goes, has cost."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from semblend_core.contract import tenant_of
from semblend_core.discovery import Hashes

SAMPLE = 32
"""Fingerprints kept of a donor that went: the smallest, so that equal text is sampled equally."""
MOST_GONE = 4096
"""Donors remembered after they went; the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class Regret:
    """A donor that is wanted again."""

    namespace: str
    donor_id: str
    tokens: int
    """About how many of its tokens are wanted, and held by no other donor."""
    after_s: float
    """Since it went."""


@dataclass(frozen=True, slots=True)
class _Gone:
    tokens: int
    sample: Hashes
    at: float


def sample_of(hashes: Hashes, runs: int) -> Hashes:
    """A few of a donor's fingerprints by which its text is known again: one for each of its ``runs`` that is sure to
    have one, so that donors of one length take the same room."""
    return np.unique(hashes)[: max(1, min(SAMPLE, runs))].copy()


class RegretLedger:
    """Remembers who went, by a sample of fingerprints. Not thread-safe: the owner holds its lock."""

    def __init__(self) -> None:
        self._gone: OrderedDict[tuple[str, str], _Gone] = OrderedDict()
        self._by_hash: dict[tuple[str, int], dict[tuple[str, str], None]] = {}

    def __len__(self) -> int:
        return len(self._gone)

    def went(self, namespace: str, donor_id: str, tokens: int, sample: Hashes) -> None:
        name = (namespace, donor_id)
        self.forget(name)
        self._gone[name] = _Gone(tokens, sample, time.monotonic())
        for each in sample.tolist():
            self._by_hash.setdefault((namespace, each), {})[name] = None
        while len(self._gone) > MOST_GONE:
            self.forget(next(iter(self._gone)))

    def wanted(self, namespace: str, hashes: Hashes) -> list[Regret]:
        """Who shares text with a prompt of these fingerprints, the most first. They stay until ``forget``."""
        if not self._gone:
            return []
        found: dict[tuple[str, str], int] = {}
        for each in np.unique(hashes).tolist():
            for name in self._by_hash.get((namespace, each), ()):
                found[name] = found.get(name, 0) + 1
        now = time.monotonic()
        regrets = []
        for name, shared in found.items():
            gone = self._gone[name]
            regrets.append(Regret(*name, round(gone.tokens * shared / gone.sample.size), now - gone.at))
        return sorted(regrets, key=lambda regret: -regret.tokens)

    def forget(self, name: tuple[str, str]) -> None:
        gone = self._gone.pop(name, None)
        if gone is None:
            return
        for each in gone.sample.tolist():
            names = self._by_hash[name[0], each]
            del names[name]
            if not names:
                del self._by_hash[name[0], each]

    def forget_tenant(self, tenant: str) -> None:
        for name in [name for name in self._gone if tenant_of(name[0]) == tenant]:
            self.forget(name)

    def clear(self) -> None:
        self._gone.clear()
        self._by_hash.clear()

    def check_integrity(self) -> None:
        assert len(self._gone) <= MOST_GONE, "too many are remembered"
        named = {name for names in self._by_hash.values() for name in names}
        assert named <= self._gone.keys(), "a fingerprint of nobody is kept"
