"""In-process counters: what a provider counts while it works, read as one consistent ``ProviderStats``."""

from __future__ import annotations

import threading
from collections import Counter

from semblend_core.contract import (
    DeclineReason,
    LookupResult,
    OfferResult,
    Outcome,
    OutcomeKind,
    ProviderStats,
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

    def snapshot(self, *, donors: int, donor_bytes: int, pinned_requests: int) -> ProviderStats:
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
            )
