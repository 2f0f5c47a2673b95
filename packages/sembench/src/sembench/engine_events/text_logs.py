"""Text logs of vLLM, SGLang and LMCache: events between other words, read from what follows their markers."""

from __future__ import annotations

import datetime
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator

from sembench.engine_events.event import REUSE_COUNTS, Event, UnreadableEventError

_PAIR = re.compile(r"(\w+)=([^\s,;()]+)")
# A level or a bracket may follow at once: where a line end was lost, the next line's prefix does.
_WHOLE = re.compile(r"\d{1,15}(?=[A-Z\[]|$)")
_RANK = re.compile(r"(?<![A-Za-z0-9])[TP]P(\d+)(?![A-Za-z0-9])")
"""Tensor and pipeline parallel. Data-parallel ranks are engines of their own."""
_ISO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")
_VLLM_EVENT = re.compile(
    r"SemBlend (?:donor registered|semantic lookup (?:hit|miss)|[^=\n]{0,80}?load advertised|materializ(?:ed|ing))\b"
)
_SGLANG_EVENT = re.compile(
    r"register_donor\w*: ?ok\b|\[FUZZY\] semantic hit\b|\[FUZZY RADIX\] Fuzzy match (?:success|failed)\b"
    r"|\[FUZZY\] Realized\b|segmented prefill realized donor phase\b",
    re.IGNORECASE,
)
_REALIZED = re.compile(r"Realized (\d{1,15}) fuzzy tokens(?: \((\d+) segments\))?", re.IGNORECASE)
_LMCACHE_EVENT = re.compile(
    r"hit tokens: *\d{1,15}(?!\d)|\b(?:Retrieved|Stored) \d{1,15} (?:out of|tokens)\b", re.IGNORECASE
)
_LMCACHE_REQUEST = re.compile(r"Reqid: *([^\s,]+)|req_id=([^\s\],]+)", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")


def find_time(text: str) -> float | None:
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


class _TextLog(ABC):
    """A log whose events stand between other words, each from its marker to the next."""

    is_stream = False
    marker: re.Pattern[str]
    tells = REUSE_COUNTS

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def events(self, text: str) -> Iterator[Event]:
        starts = [match.start() for match in self.marker.finditer(text)]
        if not starts:
            return
        later = False
        # Processes that share a pipe can lose a line end: one line may hold several events.
        for before, start, end in zip([0, *starts], starts, [*starts[1:], len(text)], strict=False):
            later = _is_later_rank(text[before:start], later)
            if later:
                self._counts["lines_of_later_ranks"] += 1
                continue
            try:
                yield from self._read(text[start:end], text)
            except UnreadableEventError as error:
                yield Event(kind="unreadable", reason=str(error))

    @abstractmethod
    def _read(self, piece: str, line: str) -> Iterator[Event]:
        """The events of one piece of a line."""

    def finish(self) -> Iterator[Event]:
        return iter(())

    def remarks(self) -> dict[str, int]:
        return dict(self._counts)


class VllmLog(_TextLog):
    """Only ``SemBlend materialized`` is reuse; ``materializing`` is the intention, and ``advertised`` the promise."""

    marker = _VLLM_EVENT

    def _read(self, piece: str, line: str) -> Iterator[Event]:
        found = _pairs(piece)
        request_id = found.get("request_id")
        if piece.startswith("SemBlend donor registered"):
            tokens = _count_of(found, "tokens", "donor registered")
            yield Event(kind="donor_registered", request_id=request_id, tokens=tokens)
        elif piece.startswith("SemBlend semantic lookup"):
            yield self._lookup(piece, found, request_id)
        elif piece.startswith("SemBlend materialized"):
            yield Event(
                kind="materialized", request_id=request_id, tokens=_count_of(found, "tokens", "SemBlend materialized")
            )
        elif piece.startswith("SemBlend materializing"):
            yield Event(kind="other", reason="materializing")
        else:
            tokens = _count_of(found, "tokens", "load advertised")
            yield Event(kind="load_advertised", request_id=request_id, tokens=tokens)

    def _lookup(self, piece: str, found: dict[str, str], request_id: str | None) -> Event:
        hit = piece.startswith("SemBlend semantic lookup hit")
        if not hit:
            # Where misses are written too, hits and misses are all the lookups there were.
            self.tells |= {"lookups"}
        return Event(
            kind="lookup",
            request_id=request_id,
            found=hit,
            reason=None if hit else found.get("reason", "miss"),
            lookup_us=_microseconds(found.get("latency_ms")),
        )


class SglangLog(_TextLog):
    """Realized tokens are reuse, a match is only found.

    A segmented prefill tells of its tokens twice: once per phase with the request's id, then as one ``Realized``
    line without it. A match can be written again each time the scheduler looks at a queued request.
    """

    marker = _SGLANG_EVENT

    def __init__(self) -> None:
        super().__init__()
        self._matched: dict[str, int] = {}
        self._hit_requests: set[str] = set()
        self._phases: dict[str, list[int]] = {}
        self._realized: list[tuple[int, bool, list[str]]] = []
        self._waiting: dict[str, int] = {}

    def _read(self, piece: str, line: str) -> Iterator[Event]:
        start = piece[:60].lower()
        found = _pairs(piece)
        request_id = found.get("rid") or found.get("request_id")
        if start.startswith("register_donor"):
            tokens = _count_of(found, "tokens", "register_donor")
            yield Event(kind="donor_registered", request_id=request_id, tokens=tokens)
        elif "semantic hit" in start:
            yield from self._hit(request_id)
        elif "match failed" in start:
            self.tells |= {"lookups"}
            yield Event(kind="lookup", request_id=request_id, found=False, reason="no_match")
        elif "match success" in start:
            yield from self._match(_count_of(found, "cached", "Fuzzy match success"), request_id)
        elif "donor phase" in start:
            tokens = _count_of(found, "donor_tokens", "segmented prefill realized donor phase")
            self._phases.setdefault(request_id or "", []).append(tokens)
        else:
            self._realization(piece)

    def _hit(self, request_id: str | None) -> Iterator[Event]:
        if request_id is None:
            # Its match line follows and is counted there.
            yield Event(kind="other", reason="hit_without_request")
        elif request_id not in self._hit_requests:
            self._hit_requests.add(request_id)
            yield Event(kind="lookup", request_id=request_id, found=True)

    def _match(self, tokens: int, request_id: str | None) -> Iterator[Event]:
        if request_id is None:
            yield Event(kind="lookup", found=True)
            yield Event(kind="load_advertised", tokens=tokens)
            return
        if request_id in self._matched:
            self._counts["repeated_matches"] += 1
        yield from self._hit(request_id)
        self._matched[request_id] = self._waiting[request_id] = tokens

    def _realization(self, piece: str) -> None:
        match = _REALIZED.search(piece)
        if match is None:
            raise UnreadableEventError("[FUZZY] Realized: no number of fuzzy tokens")
        tokens = int(match[1])
        # The line has no id. It is a request's where exactly one request waits for this many tokens.
        owners = [request for request, expected in self._waiting.items() if expected == tokens]
        if len(owners) == 1:
            del self._waiting[owners[0]]
        self._realized.append((tokens, match[2] is not None, owners))

    def finish(self) -> Iterator[Event]:
        for request_id, tokens in self._matched.items():
            yield Event(kind="load_advertised", request_id=request_id, tokens=tokens)
        for request_id, phases in self._phases.items():
            for tokens in phases:
                yield Event(kind="materialized", request_id=request_id or None, tokens=tokens)
        sums = Counter(sum(phases) for phases in self._phases.values())
        for tokens, segmented, owners in self._realized:
            if sums[tokens] and not (len(owners) == 1 and owners[0] not in self._phases):
                sums[tokens] -= 1
                self._counts["realized_lines_that_sum_up_phases"] += 1
            elif segmented and self._phases:
                # Phases are in this log and none sum up to it: counting both could count tokens twice.
                self._counts["segmented_tokens_not_counted"] += tokens
            elif not tokens:
                yield Event(kind="other", reason="realized_nothing")
            else:
                owner = owners[0] if len(owners) == 1 else None
                self._counts["realized_without_request"] += owner is None
                yield Event(kind="materialized", request_id=owner, tokens=tokens)


class LmcacheLog(_TextLog):
    """An exact baseline, no semantic reuse: lookups by ``hit tokens`` lines, and tokens retrieved and stored."""

    marker = _LMCACHE_EVENT
    tells = frozenset({"lookups", "lookup_hits", "exact_retrieved_tokens", "stored_tokens"})

    def _read(self, piece: str, line: str) -> Iterator[Event]:
        number = _NUMBER.search(piece)
        tokens = int(number[0]) if number else 0  # the marker holds a number
        start = piece[:9].lower()
        if start.startswith("stored"):
            yield Event(kind="stored", tokens=tokens)
        elif start == "retrieved":
            yield Event(kind="exact_retrieved", tokens=tokens)
        else:
            self._counts["hit_tokens"] += tokens
            named = _LMCACHE_REQUEST.search(line)
            request_id = (named[1] or named[2]) if named else None
            yield Event(kind="lookup", request_id=request_id, found=tokens > 0, reason=None if tokens else "no_hit")


def _pairs(text: str) -> dict[str, str]:
    return dict(_PAIR.findall(text))


def _count_of(found: dict[str, str], name: str, what: str) -> int:
    """A figure without which the event says nothing."""
    value = _WHOLE.match(found.get(name, ""))
    if value is None:
        raise UnreadableEventError(f"{what}: no {name}= with a number")
    return int(value[0])


def _microseconds(milliseconds: str | None) -> float | None:
    try:
        return None if milliseconds is None else float(milliseconds) * 1000
    except ValueError:
        return None


def _is_later_rank(prefix: str, otherwise: bool) -> bool:
    """Whether an event comes from a rank beyond the first: each rank tells of the same tokens.

    ``otherwise``: what holds where the prefix names no rank.
    """
    ranks = _RANK.findall(prefix)
    return any(rank != "0" for rank in ranks) if ranks else otherwise
