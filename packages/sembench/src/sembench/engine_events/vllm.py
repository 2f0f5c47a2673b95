"""vLLM's text log: ``SemBlend ...`` lines of a KV connector, with key=value pairs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sembench.engine_events.event import Event
from sembench.engine_events.text import count_of, is_later_rank, pairs, read_pieces

_EVENT = re.compile(
    r"SemBlend (?:donor registered|semantic lookup (?:hit|miss)|[^=\n]{0,80}?load advertised|materializ(?:ed|ing))\b"
)


class VllmLog:
    """Only ``SemBlend materialized`` is reuse; ``materializing`` is the intention, and ``advertised`` the promise."""

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
        self._later_ranks = 0

    def events(self, text: str) -> Iterator[Event]:
        first = _EVENT.search(text)
        if first is None:
            return
        if is_later_rank(text[: first.start()]):
            self._later_ranks += 1
            return
        yield from read_pieces(text, _EVENT, self._event)

    def finish(self) -> Iterator[Event]:
        return iter(())

    def remarks(self) -> dict[str, int]:
        return {"lines_of_later_ranks": self._later_ranks}

    def _event(self, piece: str) -> Iterator[Event]:
        found = pairs(piece)
        request_id = found.get("request_id")
        if piece.startswith("SemBlend donor registered"):
            yield Event(kind="donor_registered", tokens=count_of(found, "tokens", "donor registered"))
        elif piece.startswith("SemBlend semantic lookup"):
            yield self._lookup(piece, found, request_id)
        elif piece.startswith("SemBlend materialized"):
            yield Event(
                kind="materialized", request_id=request_id, tokens=count_of(found, "tokens", "SemBlend materialized")
            )
        elif piece.startswith("SemBlend materializing"):
            yield Event(kind="other", reason="materializing")
        else:
            tokens = count_of(found, "tokens", "load advertised")
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


def _microseconds(milliseconds: str | None) -> float | None:
    try:
        return None if milliseconds is None else float(milliseconds) * 1000
    except ValueError:
        return None
