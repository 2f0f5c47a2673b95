"""Reads and writes traces in any of the forms that are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from sembench.laboratory.formats.azure import read_azure
from sembench.laboratory.formats.coding_sessions import read_coding_sessions
from sembench.laboratory.formats.mooncake import read_mooncake, write_mooncake
from sembench.laboratory.formats.native import (
    first_document,
    read_native_csv,
    read_native_json,
    read_native_jsonl,
    write_native_csv,
    write_native_json,
    write_native_jsonl,
)
from sembench.laboratory.requests import CacheRequest
from sembench.laboratory.trace_schema import TraceRequest
from sembench.schema import InputError, naming

READERS: Mapping[str, Callable[[Path], Iterator[TraceRequest]]] = {
    "jsonl": read_native_jsonl,
    "json": read_native_json,
    "csv": read_native_csv,
    "mooncake": read_mooncake,
    "azure": read_azure,
    "kv-cache-tester": read_coding_sessions,
}
WRITERS: Mapping[str, Callable[[Iterable[TraceRequest]], Iterator[str]]] = {
    "jsonl": write_native_jsonl,
    "json": write_native_json,
    "csv": write_native_csv,
    "mooncake": write_mooncake,
}
AUTO = "auto"


def iterate_trace(path: Path, form: str = AUTO) -> Iterator[TraceRequest]:
    """One request after the other as the file has them. What is wrong with a file is said with its line and field."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"--trace {path}: is a pipe or a device, and a trace is read more than once; give a file")
    chosen = detect(path) if form == AUTO else form
    if chosen not in READERS:
        raise InputError(f"--format: {chosen!r:.80} is none of {', '.join([AUTO, *READERS])}")
    if path.is_dir() and chosen != "kv-cache-tester":
        raise InputError(f"--trace {path}: is a folder; only kv-cache-tester's sessions come as one")
    return READERS[chosen](path)


def read_trace(path: Path, form: str = AUTO, most: int | None = None) -> list[CacheRequest]:
    """All requests in the order of time, as a cache needs them. Its clock starts with the first."""
    requests = [request.for_cache() for request in islice(iterate_trace(path, form), most)]
    if not requests:
        raise InputError(f"{path}: holds no requests")
    requests.sort(key=lambda request: request.at_s)
    start = requests[0].at_s
    for request in requests:
        request.at_s -= start
    return requests


def detect(path: Path) -> str:
    if path.is_dir():
        return "kv-cache-tester"
    if path.suffix.lower() == ".csv":
        with naming(path), path.open("rb") as file:
            return "azure" if b"ContextTokens" in file.readline(4096) else "csv"
    first = first_document(path)
    if path.suffix.lower() == ".json" or not isinstance(first, dict):
        return _kind_of_json(path)
    if "hash_ids" in first:
        return "mooncake"
    return "kv-cache-tester" if "requests" in first and "block_size" in first else "jsonl"


def _kind_of_json(path: Path) -> str:
    with naming(path), path.open("rb") as file:
        head = file.read(4096)
    return "kv-cache-tester" if b'"block_size"' in head else "jsonl" if path.suffix == ".jsonl" else "json"
