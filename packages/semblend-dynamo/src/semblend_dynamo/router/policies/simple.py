"""Policies that remember nothing of prompts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from semblend_dynamo.router.asked import Asked
from semblend_dynamo.router.policies.choice import Choice, Policy
from semblend_dynamo.router.replicas import Replica, least_busy

_PREFIX = 64
"""Leading tokens or words that decide; what follows may differ."""


class RoundRobin(Policy):
    name = "round_robin"

    def __init__(self) -> None:
        self._next = 0

    async def choose(self, asked: Asked, replicas: Sequence[Replica]) -> Choice:
        chosen = sorted(replicas, key=lambda each: each.name)[self._next % len(replicas)]
        self._next += 1
        return Choice(chosen, self.name, "next_in_turn")


class LeastLoaded(Policy):
    name = "least_loaded"

    async def choose(self, asked: Asked, replicas: Sequence[Replica]) -> Choice:
        return Choice(least_busy(replicas), self.name, "least_load")


class PrefixHash(Policy):
    """The same beginning goes to the same replica; a replica that comes or goes moves only its own share.

    One that has far more to do than the others is passed over, and the next in the prefix's own order is taken.
    """

    name = "prefix_hash"

    async def choose(self, asked: Asked, replicas: Sequence[Replica]) -> Choice:
        return self.by_prefix(asked, replicas)

    def by_prefix(self, asked: Asked, replicas: Sequence[Replica]) -> Choice:
        beginning = hashlib.blake2b(asked.token_ids[:_PREFIX].tobytes(), digest_size=8)
        beginning.update(f"\0{asked.model}\0{asked.circle}".encode("utf-8", "surrogatepass"))
        key = beginning.digest()
        order = sorted(replicas, key=lambda each: hashlib.blake2b(key + each.name.encode(), digest_size=8).digest())
        most = 4 + 1.25 * sum(each.in_flight for each in replicas) / len(replicas)
        for replica in order:
            if replica.in_flight <= most:
                return Choice(replica, self.name, "prefix" if replica is order[0] else "prefix_replica_busy")
        return Choice(order[0], self.name, "prefix")
