"""Azure's inference traces: when requests came and how long they were. Nothing tells what they have in common."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

from sembench.laboratory.formats.csv_lines import csv_lines
from sembench.laboratory.trace_schema import MOST_TOKENS, TraceBlock, TraceRequest
from sembench.schema import InputError

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_azure(path: Path) -> Iterator[TraceRequest]:
    """Every prompt is one block of its own, so no cache hits anything: arrivals and sizes are all there is."""
    first: datetime.datetime | None = None
    for number, line in csv_lines(path, {"TIMESTAMP", "ContextTokens"}, ", ".join(COLUMNS)):
        where = f"{path}:{number}"
        at = _moment(where, line.get("TIMESTAMP", ""))
        first = first or at
        elapsed = (at - first) / datetime.timedelta(milliseconds=1)
        if elapsed < 0:
            raise InputError(f"{where}: TIMESTAMP: {line['TIMESTAMP']:.80} is before the first request")
        yield _request(number, elapsed, _tokens(where, line.get("ContextTokens", "")))


def _request(number: int, elapsed_ms: float, tokens: int) -> TraceRequest:
    name = f"azure-{number:07d}"
    return TraceRequest(
        request_id=name, timestamp_ms=elapsed_ms, blocks=[TraceBlock(content_hash=name, token_count=tokens, position=0)]
    )


def _moment(where: str, text: str) -> datetime.datetime:
    try:
        # Seven digits of a second in the first release, which are read up to the sixth; a zone in the second.
        moment = datetime.datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    except ValueError:
        raise InputError(f"{where}: TIMESTAMP: {text!r:.80} is no time such as 2023-11-16 18:17:03.9799600") from None


def _tokens(where: str, text: str) -> int:
    try:
        tokens = int(text)
    except ValueError:
        raise InputError(f"{where}: ContextTokens: {text!r:.80} is no whole number") from None
    if not 0 < tokens <= MOST_TOKENS:
        raise InputError(f"{where}: ContextTokens: {tokens} is not between 1 and {MOST_TOKENS}")
    return tokens
