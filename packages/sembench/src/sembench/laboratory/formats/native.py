"""Our own form, as JSON lines, as one JSON document, and as CSV with a line per block."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from sembench.laboratory.formats.csv_lines import csv_lines
from sembench.laboratory.trace_schema import TraceBlock, TraceRequest
from sembench.schema import InputError, naming, read_json, read_jsonl
from sembench.schema.reading import validated

_OF_REQUEST = [name for name in TraceRequest.model_fields if name != "blocks"]
_OF_BLOCK = list(TraceBlock.model_fields)
CSV_COLUMNS = [*_OF_REQUEST, *_OF_BLOCK]


def read_native_jsonl(path: Path) -> Iterator[TraceRequest]:
    return read_jsonl(path, TraceRequest)


class _Document(BaseModel):
    requests: list[TraceRequest]


def read_native_json(path: Path) -> Iterator[TraceRequest]:
    """``{"requests": [...]}``, or the list alone."""
    yield from read_json(path, _Document, list_as="requests").requests


def read_native_csv(path: Path) -> Iterator[TraceRequest]:
    """Lines of one request stand together; what belongs to the request is read from its first line."""
    lines = csv_lines(path, {"request_id", "content_hash", "token_count"}, ", ".join(CSV_COLUMNS))
    for _, together in groupby(lines, key=lambda numbered: numbered[1].get("request_id")):
        yield _request_of(path, list(together))


def _request_of(path: Path, lines: list[tuple[int, dict[str, str]]]) -> TraceRequest:
    number, first = lines[0]
    document: dict[str, Any] = {name: first[name] for name in _OF_REQUEST if name in first}
    document["blocks"] = [{name: line[name] for name in _OF_BLOCK if name in line} for _, line in lines]
    return validated(document, TraceRequest, f"{path}:{number}")


def write_native_jsonl(requests: Iterable[TraceRequest]) -> Iterator[str]:
    for request in requests:
        yield request.model_dump_json(exclude_none=True) + "\n"


def write_native_json(requests: Iterable[TraceRequest]) -> Iterator[str]:
    yield '{"requests": [\n'
    for number, request in enumerate(requests):
        yield (",\n" if number else "") + request.model_dump_json(exclude_none=True)
    yield "\n]}\n"


def write_native_csv(requests: Iterable[TraceRequest]) -> Iterator[str]:
    yield ",".join(CSV_COLUMNS) + "\n"
    before = None
    for request in requests:
        if request.request_id == before:
            raise InputError(
                f"request_id: two requests in a row are called {before!r:.80}, and in CSV they would become one; "
                "write jsonl or json"
            )
        before = request.request_id
        of_request = [getattr(request, name) for name in _OF_REQUEST]
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([*of_request, *(getattr(block, name) for name in _OF_BLOCK)] for block in request.blocks)
        yield text.getvalue()


def first_document(path: Path) -> Any:
    """The first line as JSON, or None: to tell formats apart."""
    with naming(path), path.open("rb") as file:
        line = file.readline(1 << 20)
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
