"""SGLang's text log with a fuzzy radix cache: a match is found first and realized later, on another line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from sembench.engine_events.event import Event, UnreadableEventError
from sembench.engine_events.text import count_of, is_later_rank, pairs, read_pieces

_EVENT = re.compile(
    r"register_donor\w*: ?ok\b|\[FUZZY\] semantic hit\b|\[FUZZY RADIX\] Fuzzy match (?:success|failed)\b"
    r"|\[FUZZY\] Realized\b|segmented prefill realized donor phase\b",
    re.IGNORECASE,
)
_REALIZED = re.compile(r"Realized (\d{1,15}) fuzzy tokens(?: \((\d+) segments\))?", re.IGNORECASE)


class SglangLog:
    """Realized tokens are reuse, a match is only found.

    A segmented prefill tells of its tokens twice: once per phase with the request's id, then as one ``Realized``
    line without it. A match can be written again each time the scheduler looks at a queued request.
    """

    is_stream = False

    def __init__(self) -> None:
        self.tells = frozenset(
            {
                "donors_registered",
                "lookup_hits",
                "loads_advertised",
                "advertised_tokens",
                "materialization_events",
                "materialized_tokens",
            }
        )
        self._matched: dict[str, int] = {}
        self._hit_requests: set[str] = set()
        self._phases: dict[str, list[int]] = {}
        self._realized: list[tuple[int, bool, list[str]]] = []
        self._waiting: dict[str, int] = {}
        self._counts: Counter[str] = Counter()

    def events(self, text: str) -> Iterator[Event]:
        first = _EVENT.search(text)
        if first is None:
            return
        if is_later_rank(text[: first.start()]):
            self._counts["lines_of_later_ranks"] += 1
            return
        yield from read_pieces(text, _EVENT, self._event)

    def _event(self, piece: str) -> Iterator[Event]:
        start = piece[:60].lower()
        found = pairs(piece)
        request_id = found.get("rid") or found.get("request_id")
        if start.startswith("register_donor"):
            yield Event(kind="donor_registered", tokens=count_of(found, "tokens", "register_donor"))
        elif "semantic hit" in start:
            yield from self._hit(request_id)
        elif "match failed" in start:
            self.tells |= {"lookups"}
            yield Event(kind="lookup", request_id=request_id, found=False, reason="no_match")
        elif "match success" in start:
            yield from self._match(count_of(found, "cached", "Fuzzy match success"), request_id)
        elif "donor phase" in start:
            tokens = count_of(found, "donor_tokens", "segmented prefill realized donor phase")
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

    def remarks(self) -> dict[str, int]:
        return dict(self._counts)
