"""What is counted while a provider and its audit work, and the names under which engines export it."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from semblend_core.contract import (
    DeclineReason,
    LookupResult,
    OfferResult,
    Outcome,
    OutcomeKind,
    ProbeEnd,
    ProviderStats,
    SelfTestState,
)

logger = logging.getLogger(__name__)


class ProviderCounters:
    """Counts lookups, offers, outcomes and evictions. Every method may be called from any thread.

    Confirmed tokens come from outcomes alone: a plan, however good, counts as a plan.
    """

    def __init__(self) -> None:
        # Reentrant: a finalizer that frees a donor may count while its thread is counting.
        self._lock = threading.RLock()
        self._lookups = 0
        self._plans = 0
        self._cut_short = 0
        self._declines: Counter[DeclineReason] = Counter()
        self._outcomes: Counter[OutcomeKind] = Counter()
        self._confirmed_tokens = 0
        self._alias_tokens = 0
        self._evicted_donors = 0
        self._regretted_donors = 0
        self._background_tokens = 0
        self._probes: Counter[ProbeEnd] = Counter()

    def count_lookup(self, result: LookupResult) -> None:
        """A lookup ended. A refusal is counted by its reason when the request's outcome is reported, once."""
        with self._lock:
            self._lookups += 1
            self._plans += result.plan is not None
            self._cut_short += result.cut_short

    def count_offer(self, result: OfferResult) -> None:
        """A donor was offered; only a refusal is counted."""
        if result.reason is not None:
            with self._lock:
                self._declines[result.reason] += 1

    def count_outcome(self, outcome: Outcome) -> None:
        """A request ended. The caller sees to it that each is counted once.

        What was found and not loaded is a decline if it has a reason. Without one, loading was not asked for.
        """
        with self._lock:
            self._outcomes[outcome.kind] += 1
            if outcome.reason is not None:
                self._declines[outcome.reason] += 1
            if outcome.kind is OutcomeKind.MATERIALIZED and outcome.confirmed_tokens is not None:
                self._confirmed_tokens += outcome.confirmed_tokens
            self._alias_tokens += outcome.alias_tokens or 0

    def count_evictions(self, donors: int = 1) -> None:
        """Donors were dropped to keep a budget."""
        with self._lock:
            self._evicted_donors += donors

    def count_regrets(self, donors: int) -> None:
        """Donors that had gone were wanted again."""
        with self._lock:
            self._regretted_donors += donors

    def count_background(self, tokens: int) -> None:
        """Tokens were computed that no request had asked for now."""
        with self._lock:
            self._background_tokens += tokens

    def count_probe(self, end: ProbeEnd) -> None:
        """A probe ended."""
        with self._lock:
            self._probes[end] += 1

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
                lookups_cut_short=self._cut_short,
                declines=dict(self._declines),
                outcomes=dict(self._outcomes),
                confirmed_tokens=self._confirmed_tokens,
                alias_tokens=self._alias_tokens,
                evicted_donors=self._evicted_donors,
                regretted_donors=self._regretted_donors,
                background_tokens=self._background_tokens,
                probes=dict(self._probes),
                donors=donors,
                donor_bytes=donor_bytes,
                pinned_requests=pinned_requests,
                self_test=self_test,
            )


WARN_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class AuditCounters:
    """Where the emitted records went. Their sum is the number of ``emit`` calls."""

    written: int = 0
    dropped_queue_full: int = 0
    """The disk was slower than the events."""
    dropped_io_error: int = 0
    """The disk was full, the path not writable, the directory gone, or another writer held the file."""
    dropped_closed: int = 0
    """Emitted after close, or in a forked child."""
    dropped_unencodable: int = 0
    """Held a value that JSON cannot express: a mistake of the caller."""
    queued: int = 0
    """Waiting for the writer. A gauge."""

    @property
    def dropped(self) -> int:
        """All that will never be read, for whatever reason."""
        lost = self.dropped_queue_full + self.dropped_io_error
        return lost + self.dropped_closed + self.dropped_unencodable


class AuditAlarm:
    """Tells the ordinary log that records are lost: at once, then at most once a minute, and when it is over.

    Used by the writer's thread only, so that no log handler ever runs on the thread that emits.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._told = 0
        self._told_at: float | None = None
        self._failing = False
        """An I/O error was told and its end was not."""

    def look(self, counters: AuditCounters, error: Exception | None, *, recovered: bool) -> None:
        """Called after each batch. ``error`` stopped it; ``recovered``: some of it reached the disk."""
        if self._failing and recovered and error is None:
            self._failing = False
            logger.warning("SemBlend's audit log %s is written again; %s", self._path, _losses(counters))
        if counters.dropped <= self._told:
            return
        now = time.monotonic()
        if self._told_at is None or now - self._told_at >= WARN_EVERY_S:
            cause = error if error is not None else "see the counts"
            logger.warning("SemBlend's audit log %s loses records: %s; %s", self._path, cause, _losses(counters))
            self._told, self._told_at, self._failing = counters.dropped, now, error is not None


def _losses(counters: AuditCounters) -> str:
    return (
        f"lost so far: {counters.dropped_io_error} to I/O errors, "
        f"{counters.dropped_queue_full} to a full queue (raise SEMBLEND_AUDIT_QUEUE), "
        f"{counters.dropped_unencodable} that JSON cannot express"
    )


ENGINE_COUNTERS = {
    "lookups": ("semblend_lookups", "Requests that were looked up."),
    "plans": ("semblend_plans", "Lookups that ended in a plan: a finding, not reuse."),
    "lookups_cut_short": (
        "semblend_lookups_cut_short",
        "Lookups whose time was up before all donors were compared: what they found may not be all.",
    ),
    "confirmed_tokens": ("semblend_confirmed_tokens", "Tokens of relocated KV that landed and were used."),
    "alias_tokens": (
        "semblend_alias_tokens",
        "Tokens that KV of other tokens stood for, as a provider proposed: no reuse of their own KV.",
    ),
    "evicted_donors": ("semblend_evicted_donors", "Donors that are gone for want of room."),
    "regretted_donors": (
        "semblend_regretted_donors",
        "Donors that had gone and were wanted again: a later prompt shares text with them that no donor holds.",
    ),
    "background_tokens": (
        "semblend_background_tokens",
        "Tokens computed exactly while the engine had room: openings that many ask for, and what is compared.",
    ),
}
ENGINE_LABELLED_COUNTERS = {
    "outcomes": ("semblend_outcomes", "Requests by how they ended.", "outcome"),
    "declines": ("semblend_declines", "Requests and donors that were declined, by reason.", "reason"),
    "probes": ("semblend_probes", "Steps that looked where a question looks, by what became of them.", "end"),
}
"""With the label that tells their series apart."""
ENGINE_GAUGES = {"donors": ("semblend_donors", "Donors that can be found.")}
ENGINE_STATES = {
    "self_test": (
        "semblend_self_test",
        "1 for the state that the self-test of the model is in.",
        "state",
        SelfTestState,
    ),
}
"""Gauges with one series for each state, by the label that names it: 1 for the state at hand, 0 for the others.

So the sum over an engine's processes says how many of them are in a state.
"""


def growth_of(before: ProviderStats, after: ProviderStats) -> dict[str, Any]:
    """What the counters have grown by, with their labels' values as text. One that counts backwards has not grown."""
    grown: dict[str, Any] = {name: max(0, getattr(after, name) - getattr(before, name)) for name in ENGINE_COUNTERS}
    for name in ENGINE_LABELLED_COUNTERS:
        known = getattr(before, name)
        grown[name] = {
            str(value): count - known.get(value, 0)
            for value, count in getattr(after, name).items()
            if count > known.get(value, 0)
        }
    return grown
