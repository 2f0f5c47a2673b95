"""What every format is turned into before it is counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

_LARGEST = 2**53
"""Whole numbers below it are exact as floats."""

REUSE_COUNTS = frozenset(
    {
        "donors_registered",
        "lookup_hits",
        "loads_advertised",
        "advertised_tokens",
        "materialization_events",
        "materialized_tokens",
    }
)
"""The counts of a summary that every format of semantic reuse tells."""

EventKind = Literal[
    "donor_captured",
    "donor_registered",
    "lookup",
    "plan",
    "load_advertised",
    "materialized",
    "alias",
    "declined",
    "evicted",
    "regretted",
    "error",
    "exact_retrieved",
    "stored",
    "other",
    "unreadable",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that an engine said. None: it did not say."""

    kind: EventKind
    request_id: str | None = None
    """The request it tells of; of a donor the one that left it, where the format says so."""
    engine_id: str | None = None
    """The engine's own id of that request, where it has one: two of them are two tries."""
    tokens: int | None = None
    bytes: int | None = None
    reason: str | None = None
    """Why there is no plan, why it was declined, the cause of an eviction, the error, what is unreadable; the name of
    another event."""
    spans: int | None = None
    lookup_us: float | None = None
    found: bool | None = None
    """Of a lookup: whether it ended in a plan."""
    time: float | None = None
    """Unix seconds."""


class UnreadableEventError(Exception):
    """A line claims to be an event and is not readable; the message says why."""


class LineParser(Protocol):
    """Reads one format. A parser may keep state, so each summary has its own."""

    tells: frozenset[str]
    """The counts of the summary that this format can tell at all."""
    is_stream: bool
    """Every event is written, so an empty file tells of none. A text log may have been silent."""

    def events(self, text: str) -> Iterator[Event]:
        """The events in a line; none for a line of something else. What claims to be one and is not readable comes as
        ``unreadable``, or as an ``UnreadableEventError`` where the whole line is lost."""

    def finish(self) -> Iterator[Event]:
        """What could be told only at the end."""

    def remarks(self) -> dict[str, int]:
        """Counts of the format's own that belong to no common field."""


def as_number(value: object) -> float | None:
    """A figure, if it is one. JSON's true is none, nor are NaN, infinities and what no counter could have reached."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LARGEST < value < _LARGEST:
        return None
    return float(value)


def as_count(value: object) -> int | None:
    """A count, if it is one: a whole number that is not negative."""
    known = as_number(value)
    return int(known) if known is not None and known >= 0 and known == int(known) else None
