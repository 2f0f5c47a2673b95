"""LMCache's text log: an exact baseline. Nothing here is semantic reuse."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from sembench.engine_events.event import Event
from sembench.engine_events.text import is_later_rank, read_pieces

_EVENT = re.compile(r"hit tokens: *\d{1,15}(?!\d)|\b(?:Retrieved|Stored) \d{1,15} (?:out of|tokens)\b", re.IGNORECASE)
_REQUEST = re.compile(r"Reqid: *([^\s,]+)|req_id=([^\s\],]+)", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")


class LmcacheLog:
    """Counts a lookup per ``hit tokens`` line and the tokens that were retrieved and stored."""

    is_stream = False
    tells = frozenset({"lookups", "lookup_hits", "exact_retrieved_tokens", "stored_tokens"})

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def events(self, text: str) -> Iterator[Event]:
        first = _EVENT.search(text)
        if first is None:
            return
        if is_later_rank(text[: first.start()]):
            self._counts["lines_of_later_ranks"] += 1
            return
        named = _REQUEST.search(text)
        request_id = (named[1] or named[2]) if named else None
        yield from read_pieces(text, _EVENT, lambda piece: self._event(piece, request_id))

    def finish(self) -> Iterator[Event]:
        return iter(())

    def remarks(self) -> dict[str, int]:
        return dict(self._counts)

    def _event(self, piece: str, request_id: str | None) -> Iterator[Event]:
        number = _NUMBER.search(piece)
        tokens = int(number[0]) if number else 0  # the marker holds a number
        start = piece[:9].lower()
        if start.startswith("stored"):
            yield Event(kind="stored", tokens=tokens)
        elif start == "retrieved":
            yield Event(kind="exact_retrieved", tokens=tokens)
        else:
            self._counts["hit_tokens"] += tokens
            yield Event(kind="lookup", request_id=request_id, found=tokens > 0, reason=None if tokens else "no_hit")
