"""What the backend itself says of each request: its audit stream, joined to the records by request id."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from sembench.engine_events import summarize
from sembench.schema import InputError, RequestRecord
from sembench.schema.engine import EngineRequest

_OUR_ID = re.compile(r"sb-[0-9a-f]{8}-[0-9a-f]{16}-[a-z]+[0-9]*-[0-9]{3}")
"""Engines put their own marks before and behind the id they are given."""
_SETTLE_S = 1.0


def join_audit(records: Sequence[RequestRecord], path: Path) -> list[RequestRecord]:
    """The records with what the stream at ``path`` confirms; None stays where it has nothing on a request."""
    told = _by_our_id(path)
    if any(record.request_id not in told for record in records if record.arm == "warm" and record.status == "ok"):
        time.sleep(_SETTLE_S)  # the stream is written behind the answers
        told = _by_our_id(path)
    return [_joined(record, told.get(record.request_id or "")) for record in records]


def _by_our_id(path: Path) -> dict[str, EngineRequest]:
    if not path.is_file():
        raise InputError(f"--connector-audit {path}: no such file")
    requests = summarize("semblend", [path]).requests
    return {found[0]: request for name, request in requests.items() if (found := _OUR_ID.search(name))}


def _joined(record: RequestRecord, told: EngineRequest | None) -> RequestRecord:
    if told is None:
        return record
    settled = told.confirmed_tokens is not None
    # Events that end without an advertised load say that there was none.
    advertised = 0 if settled and told.advertised_tokens is None else told.advertised_tokens
    outcome = "materialized" if told.confirmed_tokens else "declined" if told.reason else record.outcome
    return record.model_copy(
        update={
            "advertised_tokens": advertised,
            "confirmed_tokens": told.confirmed_tokens,
            "spans": told.spans,
            "decline_reason": told.reason,
            "lookup_us": told.lookup_us,
            "outcome": outcome,
        }
    )
