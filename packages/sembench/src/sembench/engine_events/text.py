"""What the text formats share: events between other words, key=value pairs, ranks and times in front."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator

from sembench.engine_events.event import Event, UnreadableEventError

_PAIR = re.compile(r"(\w+)=([^\s,;()]+)")
# A level or a bracket may follow at once: where a line end was lost, the next line's prefix does.
_WHOLE = re.compile(r"\d{1,15}(?=[A-Z\[]|$)")
_RANK = re.compile(r"(?<![A-Za-z0-9])TP(\d+)(?![A-Za-z0-9])")
_ISO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")


def read_pieces(text: str, marker: re.Pattern[str], read: Callable[[str], Iterator[Event]]) -> Iterator[Event]:
    """The events of a line, each from its marker to the next: processes that share a pipe can lose a line end."""
    starts = [match.start() for match in marker.finditer(text)]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        try:
            yield from read(text[start:end])
        except UnreadableEventError as error:
            yield Event(kind="unreadable", reason=str(error))


def pairs(text: str) -> dict[str, str]:
    return dict(_PAIR.findall(text))


def count_of(found: dict[str, str], name: str, what: str) -> int:
    """A figure without which the event says nothing."""
    value = _WHOLE.match(found.get(name, ""))
    if value is None:
        raise UnreadableEventError(f"{what}: no {name}= with a number")
    return int(value[0])


def is_later_rank(prefix: str) -> bool:
    """Whether a line comes from a tensor-parallel rank beyond the first: each rank tells of the same tokens."""
    rank = _RANK.search(prefix)
    return rank is not None and rank[1] != "0"


def time_of(text: str) -> float | None:
    """Unix seconds of the first time with a zone. Times without one are in a zone that only the host knows."""
    found = _ISO_TIME.search(text[:200])
    if found is None:
        return None
    # Python reads at most six digits of a second; Kubernetes writes nine.
    moment = re.sub(r"(\.\d{6})\d+", r"\1", found[0])
    try:
        return datetime.datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return None
