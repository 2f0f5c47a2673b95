"""What the store counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from semblend_core.kv.store.vocabulary import Gone, Miss, Quarantine, StoreDecline, Tier


@dataclass(frozen=True, slots=True)
class TierStats:
    """One tier. Counters since start, except the gauges at the end."""

    stored: int = 0
    """Donors that became durable here, from whatever source."""
    hits: int = 0
    """Donors acquired from here."""
    evictions: int = 0
    """Donors that left for want of room, demoted or dropped."""
    demotions: int = 0
    """Donors that left for want of room and are kept in a slower tier."""
    promotions: int = 0
    """Donors copied to here from a slower tier after their use."""
    declines: Mapping[StoreDecline, int] = field(default_factory=dict)
    """Donors this tier did not take, by reason. The donor may have found a place in a slower one."""
    limit_bytes: int = 0
    bytes: int = 0
    """Charged now: what is held, what is coming in, and what is not yet deleted."""
    donors: int = 0
    pinned_donors: int = 0


@dataclass(frozen=True, slots=True)
class StoreStats:
    """A consistent snapshot. Counters since start, except ``pending`` and ``donors``."""

    tiers: Mapping[Tier, TierStats]
    misses: Mapping[Miss, int]
    declines: Mapping[StoreDecline, int]
    """Donors that were offered and not kept anywhere, by reason."""
    failed_loads: Mapping[StoreDecline, int]
    quarantined: Mapping[Quarantine, int]
    gone: Mapping[Gone, int]
    """Visible donors that the store lost, by reason."""
    failed_callbacks: int
    pending: int
    """Donors whose bytes are on their way."""
    donors: int


class Tally:
    """The counters behind StoreStats. Not thread-safe: the owner holds its lock."""

    def __init__(self) -> None:
        self.stored: Counter[Tier] = Counter()
        self.hits: Counter[Tier] = Counter()
        self.evictions: Counter[Tier] = Counter()
        self.demotions: Counter[Tier] = Counter()
        self.promotions: Counter[Tier] = Counter()
        self.tier_declines: dict[Tier, Counter[StoreDecline]] = {tier: Counter() for tier in Tier}
        self.misses: Counter[Miss] = Counter()
        self.declines: Counter[StoreDecline] = Counter()
        self.failed_loads: Counter[StoreDecline] = Counter()
        self.quarantined: Counter[Quarantine] = Counter()
        self.gone: Counter[Gone] = Counter()
        self.failed_callbacks = 0

    def tier(self, tier: Tier, *, limit_bytes: int, used: int, donors: int, pinned: int) -> TierStats:
        return TierStats(
            stored=self.stored[tier],
            hits=self.hits[tier],
            evictions=self.evictions[tier],
            demotions=self.demotions[tier],
            promotions=self.promotions[tier],
            declines=MappingProxyType(dict(self.tier_declines[tier])),
            limit_bytes=limit_bytes,
            bytes=used,
            donors=donors,
            pinned_donors=pinned,
        )

    def snapshot(self, tiers: dict[Tier, TierStats], *, pending: int, donors: int) -> StoreStats:
        return StoreStats(
            tiers=MappingProxyType(tiers),
            misses=MappingProxyType(dict(self.misses)),
            declines=MappingProxyType(dict(self.declines)),
            failed_loads=MappingProxyType(dict(self.failed_loads)),
            quarantined=MappingProxyType(dict(self.quarantined)),
            gone=MappingProxyType(dict(self.gone)),
            failed_callbacks=self.failed_callbacks,
            pending=pending,
            donors=donors,
        )
