"""In-process counters: what a provider counts while it works, read as one consistent ``ProviderStats``."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate

from semblend_core.contract import (
    DeclineReason,
    LookupResult,
    OfferResult,
    Outcome,
    OutcomeKind,
    ProviderStats,
    SelfTestState,
)


class ProviderCounters:
    """Counts lookups, offers, outcomes and evictions. Every method may be called from any thread.

    Confirmed tokens come from outcomes alone: a plan, however good, counts as a plan.
    """

    def __init__(self) -> None:
        # Reentrant: a finalizer that frees a donor may count while its thread is counting.
        self._lock = threading.RLock()
        self._lookups = 0
        self._plans = 0
        self._declines: Counter[DeclineReason] = Counter()
        self._outcomes: Counter[OutcomeKind] = Counter()
        self._confirmed_tokens = 0
        self._evicted_donors = 0

    def count_lookup(self, result: LookupResult) -> None:
        """A lookup ended. A refusal is counted by its reason when the request's outcome is reported, once."""
        with self._lock:
            self._lookups += 1
            self._plans += result.plan is not None

    def count_offer(self, result: OfferResult) -> None:
        """A donor was offered; only a refusal is counted."""
        if result.reason is not None:
            with self._lock:
                self._declines[result.reason] += 1

    def count_outcome(self, outcome: Outcome) -> None:
        """A request ended. The caller sees to it that each is counted once.

        The reason of a DISCOVERY_ONLY outcome is no decline: nothing was refused, loading was not asked for.
        """
        with self._lock:
            self._outcomes[outcome.kind] += 1
            if outcome.kind is OutcomeKind.DECLINED and outcome.reason is not None:
                self._declines[outcome.reason] += 1
            if outcome.kind is OutcomeKind.MATERIALIZED and outcome.confirmed_tokens is not None:
                self._confirmed_tokens += outcome.confirmed_tokens

    def count_evictions(self, donors: int = 1) -> None:
        """Donors were dropped to keep a budget."""
        with self._lock:
            self._evicted_donors += donors

    def snapshot(
        self,
        *,
        donors: int,
        donor_bytes: int,
        pinned_requests: int,
        self_test: SelfTestState = SelfTestState.PENDING,
    ) -> ProviderStats:
        """All counters at one moment, with the gauges that only the provider knows."""
        with self._lock:
            return ProviderStats(
                lookups=self._lookups,
                plans=self._plans,
                declines=dict(self._declines),
                outcomes=dict(self._outcomes),
                confirmed_tokens=self._confirmed_tokens,
                evicted_donors=self._evicted_donors,
                donors=donors,
                donor_bytes=donor_bytes,
                pinned_requests=pinned_requests,
                self_test=self_test,
            )


LOOKUP_BOUNDS_S = (
    5e-5,
    1e-4,
    2e-4,
    3e-4,
    5e-4,
    7.5e-4,
    1e-3,
    2e-3,
    3e-3,
    5e-3,
    1e-2,
    2.5e-2,
    5e-2,
    0.1,
    0.25,
)
"""Bucket bounds for lookups: fine around the expected third of a millisecond, up to what would be a fault."""


@dataclass(frozen=True, slots=True)
class LatencySnapshot:
    """A histogram at one moment."""

    bounds: tuple[float, ...]
    """Upper bounds in seconds, ascending; one more bucket follows without a bound."""
    cumulative: tuple[int, ...]
    """Observations at or below each bound; the last is the number of all."""
    sum: float
    """Seconds of all observations together."""

    @property
    def count(self) -> int:
        return self.cumulative[-1]


class LatencyHistogram:
    """How long something took, in seconds. Made for the hot path: one bisection and three additions."""

    def __init__(self, bounds: tuple[float, ...] = LOOKUP_BOUNDS_S) -> None:
        if not bounds or list(bounds) != sorted(set(bounds)):
            raise ValueError(f"histogram bounds must ascend, got {bounds}")
        self._bounds = bounds
        self._lock = threading.RLock()
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        bucket = bisect_left(self._bounds, seconds)
        with self._lock:
            self._counts[bucket] += 1
            self._sum += seconds

    def snapshot(self) -> LatencySnapshot:
        with self._lock:
            return LatencySnapshot(self._bounds, tuple(accumulate(self._counts)), self._sum)
