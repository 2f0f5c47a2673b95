"""Audit events: what a record holds, and what it can never hold."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semblend_core.contract import (
    DeclineReason,
    LookupRequest,
    LookupResult,
    Namespace,
    Outcome,
    OutcomeKind,
    Plan,
    Span,
)
from semblend_core.telemetry import Declined, DonorRegistered, ErrorSeen, Evicted, LookupDone, Materialized, PlanMade
from semblend_core.telemetry.events import AUDIT_SCHEMA, EVENTS, AuditEvent, as_record

PAGE = Path(__file__).resolve().parents[4] / "docs" / "telemetry.md"
SALT = "tenant-secret-4711"
NAMESPACE = Namespace(
    model="m",
    revision="r",
    tokenizer="t",
    dtype="bf16",
    kv_layout="nhd",
    block_size=16,
    adapter=None,
    salt=SALT,
)
PLAN = Plan.over("r1", 400, 16, [Span(32, "d1", 0, 128), Span(200, "d2", 64, 100), Span(320, "d1", 140, 64)])


def test_the_events_have_the_names_that_readers_know() -> None:
    assert set(EVENTS) == {
        "donor_captured",
        "donor_registered",
        "lookup",
        "plan",
        "load_advertised",
        "materialized",
        "alias",
        "declined",
        "costs",
        "quality",
        "evicted",
        "regretted",
        "tenant_purged",
        "error",
    }


def test_a_record_starts_with_the_envelope() -> None:
    record = as_record(DonorRegistered(request_id="r1", donor_id="d1", tokens=512), engine="vllm", time=12.5)
    envelope = {
        "schema": AUDIT_SCHEMA,
        "event": "donor_registered",
        "time": 12.5,
        "engine": "vllm",
        "request_id": "r1",
        "client_request_id": "r1",
    }
    assert list(record.items())[:6] == list(envelope.items())
    assert record["tokens"] == 512


def test_a_record_has_the_id_that_the_client_sent_where_the_engine_adds_to_it() -> None:
    def client_id(engines_id: str) -> str:
        return engines_id.removeprefix("cmpl-")

    record = as_record(LookupDone(request_id="cmpl-mine"), engine="vllm", time=1.0, client_id=client_id)
    assert (record["request_id"], record["client_request_id"]) == ("cmpl-mine", "mine")
    unnamed = as_record(Evicted(donor_id="d1"), engine="vllm", time=1.0, client_id=client_id)
    assert unnamed["client_request_id"] is None


def test_what_is_not_known_is_null_and_present() -> None:
    record = as_record(Evicted(donor_id="d1"), engine="vllm", time=0.0)
    assert record["request_id"] is None
    for name in ("namespace", "tokens", "bytes", "cause"):
        assert record[name] is None


def example(kind: type[AuditEvent]) -> dict[str, Any]:
    """A record of ``kind`` with nothing known that need not be."""
    needed: dict[str, Any] = {
        "request_id": "r1",
        "donor_id": "d1",
        "materialize": True,
        "plan": PLAN,
        "tokens": 1,
        "reason": DeclineReason.NO_SPANS,
        "where": "lookup",
        "trial": False,
        "predicted_cold_us": 3000.0,
        "predicted_reuse_us": 1000.0,
        "doubt_us": 200.0,
        "tenant": "0" * 16,
        "donors": 1,
        "lineages": 0,
        "captures": 0,
        "kind": "one_place",
        "spending": 1.0,
        "spending_now": 2.0,
        "agreement": 0.97,
        "kl": 0.01,
        "positions": 64,
        "after_s": 2.5,
    }
    if kind.event == "quality":
        needed["tier"] = "balanced"
    names = {each.name for each in dataclasses.fields(kind)}
    return as_record(kind(**{name: needed[name] for name in names & set(needed)}), engine="e", time=1.0)


@pytest.mark.parametrize("kind", EVENTS.values(), ids=list(EVENTS))
def test_every_field_of_every_event_is_in_its_record(kind: type[AuditEvent]) -> None:
    record = example(kind)
    assert {each.name for each in dataclasses.fields(kind)} - {"plan"} <= set(record)
    assert json.loads(json.dumps(record))["event"] == kind.event


def test_a_namespace_is_recorded_as_its_digest_and_the_salt_never() -> None:
    record = as_record(
        Declined(request_id="r1", namespace=NAMESPACE, reason=DeclineReason.NO_DONORS),
        engine="vllm",
        time=1.0,
    )
    assert record["namespace"] == NAMESPACE.digest
    assert SALT not in json.dumps(record)


def test_a_digest_stands_for_its_namespace() -> None:
    assert DonorRegistered(request_id="r", donor_id="d", namespace=NAMESPACE.digest).namespace == NAMESPACE.digest


def test_any_other_text_as_namespace_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="32 hex digits") as caught:
        DonorRegistered(request_id="r", donor_id="d", namespace=SALT)
    assert SALT not in str(caught.value)


def test_a_lookup_that_found_a_plan_has_its_spans_and_no_reason() -> None:
    request = LookupRequest("r1", NAMESPACE, np.arange(400, dtype=np.int32), exact_prefix_tokens=16)
    event = LookupDone.of(request, LookupResult(PLAN, None, elapsed_us=310.5))
    assert (event.reason, event.spans, event.microseconds) == (None, 3, 310.5)
    assert (event.prompt_tokens, event.exact_prefix_tokens) == (400, 16)


def test_a_lookup_that_found_nothing_has_its_reason_and_no_spans() -> None:
    request = LookupRequest("r1", NAMESPACE, np.arange(400, dtype=np.int32))
    record = as_record(LookupDone.of(request, LookupResult(None, DeclineReason.NO_SPANS)), engine="sglang", time=1.0)
    assert json.loads(json.dumps(record))["reason"] == "no_spans"
    assert (record["spans"], record["microseconds"]) == (0, None)


def test_a_plan_can_be_rebuilt_from_its_record() -> None:
    record = as_record(PlanMade.of(PLAN, materialize=True, namespace=NAMESPACE), engine="vllm", time=1.0)
    read = json.loads(json.dumps(record))
    spans = tuple(Span(target, read["donors"][donor], start, n) for target, donor, start, n in read["span_list"])
    assert spans == PLAN.spans
    assert read["spans"] == 3
    assert read["reused_tokens"] + read["computed_tokens"] + read["exact_prefix_tokens"] == read["prompt_tokens"]


def test_materialized_tells_what_the_backend_confirmed() -> None:
    outcome = Outcome("r1", OutcomeKind.MATERIALIZED, confirmed_tokens=256, confirmed_bytes=1 << 20)
    event = Materialized.of(outcome, namespace=NAMESPACE, layers=28)
    assert (event.tokens, event.layers, event.bytes) == (256, 28, 1 << 20)


def test_nothing_but_a_confirmation_becomes_materialized() -> None:
    with pytest.raises(ValueError, match="confirmed nothing"):
        Materialized.of(Outcome("r1", OutcomeKind.DECLINED, reason=DeclineReason.LOAD_FAILED))
    with pytest.raises(ValueError, match="at least 1"):
        Materialized(request_id="r1", tokens=0)
    with pytest.raises(ValueError, match="32 hex digits"):
        Materialized(request_id="r1", tokens=1, namespace=SALT)


def test_an_error_is_recorded_by_class_and_place_without_its_message() -> None:
    def fail() -> None:
        raise KeyError(SALT)

    try:
        fail()
    except KeyError as error:
        event = ErrorSeen.of(error, "lookup", request_id="r1")
    record = as_record(event, engine="vllm", time=1.0)
    assert (record["error"], record["where"]) == ("KeyError", "lookup")
    assert record["location"] == f"{__file__}:{fail.__code__.co_firstlineno + 1}"
    assert SALT not in json.dumps(record)


def test_an_error_that_was_never_raised_has_no_place() -> None:
    assert ErrorSeen.of(ValueError("x"), "capture").location is None


def test_a_figure_that_is_not_a_number_is_null() -> None:
    for figure in (float("nan"), float("inf")):
        record = as_record(LookupDone(request_id="r", microseconds=figure), engine="e", time=1.0)
        assert record["microseconds"] is None


@pytest.mark.skipif(not PAGE.parent.is_dir(), reason="the docs are only in a checkout")
def test_the_telemetry_page_describes_every_event_and_field() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, kind in EVENTS.items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        for position, each in enumerate(example(kind)):
            shared = position < 6 or each == "namespace"
            assert f"`{each}`" in (page if shared else row), (name, each)
