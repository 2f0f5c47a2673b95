"""SemBlend's own audit stream, alone in a file or between the lines of an engine's log."""

from __future__ import annotations

import json
from typing import Any

from sembench.engine_events.event import Event, UnreadableEventError, number, whole
from sembench.schema import InputError

AUDIT_SCHEMA = "semblend.audit.v1"
AUDIT_FAMILY = "semblend.audit."
AUDIT_TELLS = frozenset(
    {
        "donors_captured",
        "donors_registered",
        "lookups",
        "lookup_hits",
        "plans",
        "loads_advertised",
        "advertised_tokens",
        "materialization_events",
        "materialized_tokens",
        "materialized_bytes",
    }
)
_DONOR_STAGES = ("offer", "capture")


def audit_record(text: str, place: str) -> dict[str, Any] | None:
    """The record in a line of a log, behind whatever prefix; None where there is none."""
    if AUDIT_FAMILY not in text:
        return None
    start = text.find("{")
    try:
        record, _ = json.JSONDecoder().raw_decode(text, start) if start >= 0 else (None, 0)
    except (ValueError, RecursionError) as error:
        raise UnreadableEventError(f"not a whole audit record: {error}") from None
    if not isinstance(record, dict) or "schema" not in record:
        return None
    check_schema(record["schema"], place)
    return record


def check_schema(schema: object, place: str) -> None:
    if schema != AUDIT_SCHEMA:
        raise InputError(f"{place}: schema: expected {AUDIT_SCHEMA!r}, found {schema!r}")


def audit_event(record: dict[str, Any]) -> Event:
    """One record as an event. Fields that a later version adds are left alone."""
    kind, request_id = record.get("event"), record.get("request_id")
    common: dict[str, Any] = {
        "request_id": None if request_id is None else str(request_id),
        "time": number(record.get("time")),
    }
    match kind:
        case "lookup":
            reason = record.get("reason")
            return Event(
                kind="lookup",
                found=reason is None,
                reason=reason,
                spans=whole(record.get("spans")),
                lookup_us=number(record.get("microseconds")),
                **common,
            )
        case "plan":
            # A plan that must not be loaded ends the request's story: nothing will land.
            only_found = record.get("materialize") is False
            return Event(kind="plan", reason="discovery_only" if only_found else None, **common)
        case "load_advertised":
            spans = whole(record.get("spans"))
            return Event(kind="load_advertised", tokens=whole(record.get("tokens")), spans=spans, **common)
        case "materialized":
            tokens = whole(record.get("tokens"))
            if not tokens:
                raise UnreadableEventError(f"materialized states at least 1 token, got {record.get('tokens')!r}")
            return Event(kind="materialized", tokens=tokens, bytes=whole(record.get("bytes")), **common)
        case "declined":
            of_donor = record.get("stage") in _DONOR_STAGES
            common["request_id"] = None if of_donor else common["request_id"]
            return Event(kind="declined", reason=str(record.get("reason")), **common)
        case "evicted":
            return Event(kind="evicted", reason=str(record.get("cause")), **{**common, "request_id": None})
        case "error":
            what = f"{record.get('where')}: {record.get('error')} at {record.get('location')}"
            return Event(kind="error", reason=what, **common)
        case "donor_captured" | "donor_registered":
            return Event(kind=kind, tokens=whole(record.get("tokens")), **{**common, "request_id": None})
    return Event(kind="other", reason=str(kind), **{**common, "request_id": None})
