"""Streams of JSON lines: SemBlend's audit stream, alone or between the lines of a log, and TensorRT-LLM's events."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from sembench.engine_events.event import REUSE_COUNTS, Event, UnreadableEventError, as_count, as_number
from sembench.schema import InputError

AUDIT_SCHEMA = "semblend.audit.v1"
AUDIT_FAMILY = "semblend.audit."
AUDIT_TELLS = REUSE_COUNTS | {"donors_captured", "lookups", "plans", "materialized_bytes"}
AUDIT_TELLS |= {"alias_events", "alias_tokens", "evicted_donors", "regretted_donors", "regretted_tokens"}
_SCHEMA = re.compile(r'"schema"\s*:\s*"semblend\.audit\.')
_ESCAPED_SCHEMA = re.compile(r'\\+"schema\\+"\s*:\s*\\+"semblend\.audit\.')
_BRACES = 64
"""How many may stand between the beginning of a record and its schema."""
_DONOR_STAGES = ("offer", "capture")
_TOKEN_FIELDS = ("tokens", "materialized_tokens", "materialized")


def cut_out_records(text: str, place: str) -> tuple[list[dict[str, Any]], list[str], str]:
    """The audit records in a line of a log, what is wrong with others, and the rest of the line.

    Processes that share a stream can put anything in front of a record, behind it, or between two.
    """
    records: list[dict[str, Any]] = []
    problems: list[str] = []
    rest, after = "", 0
    for schema in _SCHEMA.finditer(text):
        if schema.start() < after:
            continue  # inside the last one
        try:
            start, end, record = _record_around(text, after, schema.start())
        except (ValueError, RecursionError) as error:
            problems.append(f"not a whole audit record: {error}")
            after = schema.end()
            continue
        rest += text[after:start]
        after = end
        check_schema(record["schema"], place)
        records.append(record)
    if _ESCAPED_SCHEMA.search(text, after):
        problems.append("an audit record inside a string of something else")
    return records, problems, rest + text[after:] if after else text


def _record_around(text: str, after: int, key: int) -> tuple[int, int, dict[str, Any]]:
    """The innermost object that has the schema at ``key`` as its own, which need not be its first key."""
    start, why = key, "no object begins before its schema"
    for _ in range(_BRACES):
        start = text.rfind("{", after, start)
        if start < 0:
            break
        try:
            record, end = json.JSONDecoder().raw_decode(text, start)
        except ValueError as error:
            why = str(error)
            continue
        if end > key and isinstance(record, dict) and str(record.get("schema")).startswith(AUDIT_FAMILY):
            return start, end, record
    raise ValueError(why)


def check_schema(schema: object, place: str) -> None:
    if schema != AUDIT_SCHEMA:
        raise InputError(f"{place}: schema: expected {AUDIT_SCHEMA!r}, found {schema!r}")


def read_audit_event(record: dict[str, Any]) -> Event:
    """One record as an event. Fields that a later version adds are left alone."""
    kind, engine_id = record.get("event"), record.get("request_id")
    request_id = record.get("client_request_id") or engine_id
    common: dict[str, Any] = {
        "request_id": None if request_id is None else str(request_id),
        "engine_id": None if engine_id is None else str(engine_id),
        "time": as_number(record.get("time")),
    }
    match kind:
        case "lookup":
            reason = _reason(record, "reason")
            return Event(
                kind="lookup",
                found=reason is None,
                reason=reason,
                spans=as_count(record.get("spans")),
                lookup_us=as_number(record.get("microseconds")),
                **common,
            )
        case "plan":
            # A plan that must not be loaded ends the request's story: nothing will land.
            only_found = record.get("materialize") is False
            return Event(kind="plan", reason="discovery_only" if only_found else None, **common)
        case "load_advertised":
            spans = as_count(record.get("spans"))
            return Event(kind="load_advertised", tokens=as_count(record.get("tokens")), spans=spans, **common)
        case "materialized":
            tokens = as_count(record.get("tokens"))
            if not tokens:
                raise UnreadableEventError(f"materialized states at least 1 token, got {record.get('tokens')!r}")
            return Event(kind="materialized", tokens=tokens, bytes=as_count(record.get("bytes")), **common)
        case "alias":
            return Event(kind="alias", tokens=as_count(record.get("tokens")), **common)
        case "declined":
            of_donor = record.get("stage") in _DONOR_STAGES
            common["request_id"] = None if of_donor else common["request_id"]
            return Event(kind="declined", reason=str(record.get("reason")), **common)
        case "evicted":
            return Event(kind="evicted", reason=str(record.get("cause")), **{**common, "request_id": None})
        case "regretted":
            tokens = as_count(record.get("tokens"))
            return Event(kind="regretted", tokens=tokens, **{**common, "request_id": None})
        case "error":
            what = f"{record.get('where')}: {record.get('error')} at {record.get('location')}"
            return Event(kind="error", reason=what, **common)
        case "donor_captured" | "donor_registered":
            return Event(kind=kind, tokens=as_count(record.get("tokens")), **{**common, "request_id": None})
    return Event(kind="other", reason=str(kind), **{**common, "request_id": None})


class TrtllmStream:
    """``materialized`` is reuse. ``engine_blend_boundary`` says how the suffix was run, which is no count of tokens."""

    is_stream = True
    tells = REUSE_COUNTS | {"lookups"}

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def events(self, text: str) -> Iterator[Event]:
        if '"event"' not in text:
            return
        start = text.find("{")
        # Processes that share a pipe can lose a line end: one line may hold several events.
        while start >= 0:
            try:
                record, after = json.JSONDecoder().raw_decode(text, start)
            except (ValueError, RecursionError) as error:
                yield Event(kind="unreadable", reason=f"not a whole JSON object: {error}")
                return
            if isinstance(record, dict) and isinstance(record.get("event"), str):
                try:
                    yield from self._events_of(record)
                except UnreadableEventError as error:
                    yield Event(kind="unreadable", reason=str(error))
            start = text.find("{", after)

    def finish(self) -> Iterator[Event]:
        return iter(())

    def remarks(self) -> dict[str, int]:
        return dict(self._counts)

    def _events_of(self, record: dict[str, Any]) -> Iterator[Event]:
        common: dict[str, Any] = {"request_id": _request_id(record), "time": _time(record)}
        match record["event"]:
            case "lookup":
                yield from self._lookup(record, common)
            case "donor_registered":
                yield Event(kind="donor_registered", tokens=as_count(record.get("token_count")), time=common["time"])
            case "materialized":
                yield from self._materialized(record, common)
            case "engine_blend_boundary":
                self._counts["engine_blend_boundaries"] += 1
                yield Event(kind="other", reason="engine_blend_boundary", time=common["time"])
            case "error":
                yield Event(kind="error", reason=str(record.get("error") or record.get("message")), **common)
            case name:
                yield Event(kind="other", reason=name, time=common["time"])

    def _lookup(self, record: dict[str, Any], common: dict[str, Any]) -> Iterator[Event]:
        found = record.get("found") is True
        reason = _reason(record, "rejection_reason") or None
        yield Event(kind="lookup", found=found, reason=None if found else reason or "not_found", **common)
        if reason:
            yield Event(kind="declined", reason=reason, **common)
        advertised = as_count(record.get("num_new_matched_tokens"))
        if found and advertised:
            yield Event(kind="load_advertised", tokens=advertised, **common)

    def _materialized(self, record: dict[str, Any], common: dict[str, Any]) -> Iterator[Event]:
        if record.get("materialized", True) in (False, 0):
            yield Event(kind="declined", reason="nothing_materialized", **common)
            return
        tokens = next((n for name in _TOKEN_FIELDS if (n := as_count(record.get(name))) is not None), None)
        planned = as_count(record.get("covered_token_count"))
        if tokens is not None and planned is not None and tokens > planned:
            # No more tokens can land than the plan covers: the count is of something finer, such as token layers.
            self._counts["counts_above_the_plan"] += 1
            tokens = planned
        if record.get("requires_rope_correction") is True:
            self._counts["rope_corrections"] += 1
        yield Event(kind="materialized", tokens=tokens, **common)


def _reason(record: dict[str, Any], name: str) -> str | None:
    reason = record.get(name)
    if reason is not None and not isinstance(reason, str):
        raise UnreadableEventError(f"a lookup's {name} is text or null, got {str(reason)[:60]}")
    return reason


def _request_id(record: dict[str, Any]) -> str | None:
    value = record.get("request_id")
    return None if value is None else str(value)


def _time(record: dict[str, Any]) -> float | None:
    known = (as_number(record.get(name)) for name in ("time", "timestamp", "ts"))
    return next((time for time in known if time is not None), None)
