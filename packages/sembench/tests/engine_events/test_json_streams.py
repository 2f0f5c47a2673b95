"""TensorRT-LLM's stream and our own audit stream, whole, mixed, torn, rotated and of another version."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sembench.engine_events import ENGINES, summarize
from sembench.schema import EngineSummary, InputError, read_json
from semblend_core import Settings, create_provider
from semblend_core.testing import TokenEngine

Log = Callable[..., Path]


def record(event: str, request_id: str | None = "r1", **fields: Any) -> str:
    envelope = {
        "schema": "semblend.audit.v1",
        "event": event,
        "time": 1000.5,
        "engine": "vllm",
        "request_id": request_id,
    }
    return json.dumps({**envelope, "namespace": None, **fields})


MATERIALIZED = record("materialized", tokens=3072, layers=28, bytes=1024, microseconds=None)


def at(moment: int) -> str:
    return MATERIALIZED.replace("1000.5", f"100{moment}.5")


FRAGMENTS = (
    MATERIALIZED.encode(),
    MATERIALIZED.encode()[:70],
    b"\n",
    b'{"schema":"semblend.audit.v1"}\n',
    b'{"schema":"semblend.audit.v1","event":"materialized","tokens":-5}\n',
    b'{"schema":"semblend.audit.v1","event":["x"],"time":true,"request_id":7}\n',
    b'{"event":"materialized","materialized":1e400,"time":NaN}\n',
    b'{"schema":"semblend.audit.v1","event":"lookup","time":1e400,"spans":-1,"microseconds":-Infinity}\n',
    b'{"schema":"semblend.audit.v1","event":"materialized","tokens":1' + b"0" * 400 + b"}\n",
    b'{"event":"lookup","found":"yes","request_id":[1]}\n',
    b"SemBlend materialized request_id= tokens=\xff5\n",
    b"SemBlend x load advertised tokens=99999999999999999999999\n",
    b"[FUZZY] Realized fuzzy [FUZZY RADIX] Fuzzy match success: rid=a cached=1\n",
    b"SemBlend materialized tokens=" + b"9" * 5000 + b" [FUZZY] Realized " + b"9" * 5000 + b" fuzzy tokens\n",
    b"hit tokens: " + b"9" * 5000 + b" Stored " + b"9" * 5000 + b" tokens\n",
    b"LMCache hit tokens: 5 Stored 3 out of\n",
    b"ERROR KV Traceback (most recent call last):\n",
    b"\x1f\x8b",
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, int]:
    """A stream that the real provider wrote: its path, the tokens that were confirmed, and for how many requests."""
    path = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    settings = Settings(lookup_budget_ms=600_000.0, sharing="all", audit_path=str(path))
    provider = create_provider(settings, engine="vllm")
    engine = TokenEngine(provider)
    document = list(range(5000, 7000))
    engine.serve([*range(100, 160), *document])
    engine.settle()
    outcomes = [engine.serve([*range(300 + i, 380 + i), *document]).outcome for i in range(3)]
    engine.serve(list(range(20_000, 21_000)))
    provider.close()
    confirmed = [outcome.confirmed_tokens for outcome in outcomes if outcome.confirmed_tokens]
    return path, sum(confirmed), len(confirmed)


def test_the_real_stream_is_counted_as_the_engine_confirmed_it(served: tuple[Path, int, int]) -> None:
    path, tokens, events = served
    assert tokens > 0, "the engine model must have reused something for this test to say anything"
    summary = summarize("semblend", [path])
    assert (summary.materialized_tokens, summary.materialization_events) == (tokens, events)
    assert summary.unparsed_lines == 0
    assert summary.lines == len(path.read_text().splitlines())
    assert sum(request.confirmed_tokens or 0 for request in summary.requests.values()) == tokens
    assert 0 in {request.confirmed_tokens for request in summary.requests.values()}, (
        "the unrelated prompt reused nothing"
    )
    assert summary.first_time is not None


def test_gzip_and_prefixes_change_nothing(served: tuple[Path, int, int], tmp_path: Path) -> None:
    path, _, _ = served
    packed = tmp_path / "log.gz"
    packed.write_bytes(
        gzip.compress(b"\n".join(b"2026-06-22T18:00:00Z " + line for line in path.read_bytes().splitlines()))
    )
    plain, mixed = summarize("semblend", [path]), summarize("vllm", [packed])
    assert _figures(mixed) == _figures(plain)


def _figures(summary: EngineSummary) -> dict[str, Any]:
    return summary.model_dump(exclude={"engine", "inputs", "torn_lines", "extra"})


def test_audit_records_in_a_text_log_are_not_counted_beside_the_text_that_repeats_them(log: Log) -> None:
    path = log("INFO SemBlend materialized request_id=r1 donor_id=d tokens=3072", MATERIALIZED)
    summary = summarize("vllm", [path])
    assert (summary.materialization_events, summary.materialized_tokens) == (1, 3072)
    assert summary.materialized_bytes == 1024
    assert summary.extra["source"] == "semblend.audit.v1"
    assert summary.extra["events_told_twice"] == 1


def test_an_empty_stream_tells_of_nothing_and_an_empty_text_log_does_not(log: Log) -> None:
    for engine in ("semblend", "trtllm"):
        assert summarize(engine, [log()]).materialized_tokens == 0
    assert summarize("vllm", [log()]).materialized_tokens is None


def test_a_file_without_a_single_record_is_no_audit_stream(log: Log) -> None:
    summary = summarize("semblend", [log("hello", "world")])
    assert summary.materialized_tokens is None


def test_requests_are_0_only_where_their_story_has_ended(log: Log) -> None:
    summary = summarize(
        "semblend",
        [
            log(
                record("lookup", "declined", reason="no_donors", spans=0, microseconds=12.5),
                record("declined", "declined", reason="no_donors", stage="lookup", donor_id=None),
                record("lookup", "open", reason=None, spans=2, microseconds=80.0),
                record("plan", "open", materialize=True),
                record("lookup", "found-only", reason=None, spans=1, microseconds=80.0),
                record("plan", "found-only", materialize=False),
                record("declined", "donor", reason="donor_too_short", stage="offer", donor_id="donor"),
                record("evicted", None, donor_id="d", tokens=5, bytes=6, cause="budget"),
                record("regretted", None, donor_id="d", tokens=4, after_s=1.5),
                record("error", None, where="lookup", error="ValueError", location="a.py:3"),
            )
        ],
    )
    confirmed = {name: request.confirmed_tokens for name, request in summary.requests.items()}
    assert confirmed == {"declined": 0, "open": None, "found-only": 0}
    assert summary.requests["open"].lookup_us == 80.0
    assert (summary.lookups, summary.lookup_hits, summary.plans) == (3, 2, 2)
    assert summary.declined == {"donor_too_short": 1, "no_donors": 1}
    assert summary.evicted == {"budget": 1}
    assert (summary.evicted_donors, summary.regretted_donors, summary.regretted_tokens) == (1, 1, 4)
    assert (summary.errors, summary.error_samples) == (1, ["lookup: ValueError at a.py:3"])


def test_kv_of_other_tokens_is_counted_apart_and_is_no_reuse(log: Log) -> None:
    asked = record("lookup", "r2", reason=None, spans=0, microseconds=1.0)
    summary = summarize("semblend", [log(MATERIALIZED, asked, record("alias", "r2", tokens=96))])
    assert (summary.alias_events, summary.alias_tokens) == (1, 96)
    assert (summary.materialization_events, summary.materialized_tokens) == (1, 3072)
    assert (summary.requests["r2"].alias_tokens, summary.requests["r2"].confirmed_tokens) == (96, 0)


def test_a_comparison_of_answers_is_read_and_is_no_reuse(log: Log) -> None:
    found = {"tier": "balanced", "kind": "few_places", "spending": 1.0, "agreement": 0.97, "kl": 0.01, "positions": 64}
    summary = summarize("semblend", [log(MATERIALIZED, record("quality", "r1", spending_now=1.0, **found))])
    assert (summary.materialized_tokens, summary.materialization_events) == (3072, 1)
    assert (summary.unparsed_lines, summary.errors) == (0, 0)


def test_bytes_that_one_backend_did_not_tell_are_unknown_in_total(log: Log) -> None:
    summary = summarize("semblend", [log(MATERIALIZED, record("materialized", "r2", tokens=16, bytes=None))])
    assert summary.materialized_tokens == 3088
    assert summary.materialized_bytes is None


def test_a_torn_last_line_is_reported_and_the_rest_counted(log: Log) -> None:
    path = log(MATERIALIZED)
    with path.open("a") as stream:
        stream.write(MATERIALIZED[:90])
    for engine in ("semblend", "vllm", "trtllm"):
        summary = summarize(engine, [path])
        assert summary.materialized_tokens == 3072
        assert summary.unparsed_lines == 1
        assert any(":2:" in torn for torn in summary.torn_lines)


def test_a_line_of_rubbish_hides_no_record(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(
        bytes(range(256)) * 40 + b"\n" + MATERIALIZED.encode() + b"\n\x00\xff\x1b[31m\n" + b"x" * 9_000_000
    )
    summary = summarize("semblend", [path])
    assert summary.materialized_tokens == 3072


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_no_known_fragment_can_make_the_reading_fail(tmp_path: Path, fragment: bytes, engine: str) -> None:
    path = tmp_path / "any.log"
    path.write_bytes(MATERIALIZED.encode() + b"\n" + fragment)
    summarize(engine, [path])


@given(st.lists(st.one_of(st.binary(max_size=200), st.sampled_from(FRAGMENTS)), max_size=8), st.sampled_from(ENGINES))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_bytes_can_make_the_reading_fail(tmp_path: Path, parts: list[bytes], engine: str) -> None:
    path = tmp_path / "any.log"
    path.write_bytes(b"".join(parts))
    summary = summarize(engine, [path])
    assert EngineSummary.model_validate_json(summary.model_dump_json()) == summary


def test_a_damaged_gzip_keeps_what_could_be_read(tmp_path: Path) -> None:
    path = tmp_path / "audit.gz"
    lines = b"".join(MATERIALIZED.replace("r1", f"r{i}").encode() + b"\n" for i in range(5000))
    packed = gzip.compress(lines)
    path.write_bytes(packed[: len(packed) // 2])
    summary = summarize("semblend", [path])
    assert 0 < (summary.materialized_tokens or 0) < 5000 * 3072
    assert any("cannot be read further" in torn for torn in summary.torn_lines)


def test_another_version_is_refused(log: Log) -> None:
    newer = MATERIALIZED.replace("audit.v1", "audit.v2")
    for engine in ("semblend", "vllm"):
        with pytest.raises(InputError, match=r"semblend\.audit\.v2") as refused:
            summarize(engine, [log(MATERIALIZED, newer)])
        assert refused.value.exit_code == 2


def test_rotated_files_come_along_and_are_counted_once(log: Log) -> None:
    old, new = log(MATERIALIZED, name="audit.jsonl.1"), log(MATERIALIZED.replace("r1", "r2"), name="audit.jsonl")
    assert summarize("semblend", [new]).materialization_events == 2
    assert summarize("semblend", [old, new]).materialization_events == 2
    with pytest.raises(InputError, match="given twice"):
        summarize("semblend", [new, new])


def test_trtllm_tallies_rejections_and_counts_boundaries_apart(log: Log) -> None:
    lines = (
        {"event": "scheduler_initialized", "namespace": {}},
        {"event": "lookup", "request_id": 1, "found": False, "rejection_reason": "no_donor_match"},
        {"event": "lookup", "request_id": 2, "found": True, "num_new_matched_tokens": 552, "rejection_reason": ""},
        {"event": "engine_blend_boundary", "boundary_layer": 24, "prefix_token_count": 552},
        {"event": "donor_registered", "request_id": 2049, "token_count": 900},
    )
    found = summarize("trtllm", [log(*map(json.dumps, lines))])
    assert (found.lookups, found.lookup_hits, found.donors_registered) == (2, 1, 1)
    assert (found.materialization_events, found.materialized_tokens, found.advertised_tokens) == (0, 0, 552)
    assert found.declined == {"no_donor_match": 1}
    assert found.extra["engine_blend_boundaries"] == 1
    landed = {"event": "materialized", "request_id": 2, "materialized": 552, "requires_rope_correction": True}
    summary = summarize("trtllm", [log(*map(json.dumps, (*lines, landed)))])
    assert (summary.materialization_events, summary.materialized_tokens) == (1, 552)
    assert summary.requests["2"].confirmed_tokens == 552
    assert summary.requests["1"].confirmed_tokens == 0


def test_trtllm_never_counts_more_tokens_than_the_plan_covers(log: Log) -> None:
    landed = {"event": "materialized", "request_id": 2, "materialized": 552 * 28, "covered_token_count": 552}
    summary = summarize("trtllm", [log(json.dumps(landed))])
    assert summary.materialized_tokens == 552
    assert summary.extra["counts_above_the_plan"] == 1


def test_trtllm_event_without_a_count_leaves_the_tokens_unknown(log: Log) -> None:
    summary = summarize("trtllm", [log(json.dumps({"event": "materialized", "request_id": 2}))])
    assert summary.materialization_events == 1
    assert summary.materialized_tokens is None


@pytest.mark.parametrize("engine", ["semblend", "vllm", "sglang"])
def test_records_are_found_whatever_else_is_in_a_pods_log(engine: str, log: Log) -> None:
    """Other processes write to the same stream, and may leave half a line in front of a record or go on behind it."""
    stamp = "2026-06-22T18:00:01.123456789Z"
    path = log(
        f"{stamp} INFO config {{'model': 'm', 'schema': \"semblend.audit.v1\"}}",
        f"{stamp} (EngineCore pid=7) {at(1)}",
        f"{stamp} INFO plan {{'a': 1}} {at(2)}",
        f"{stamp} {at(3)}{at(4)}INFO 06-22 a line that lost its start",
        f"{stamp} \x1b[36mINFO\x1b[0m {at(5)} \x1b[0m",
        f'{stamp} {{"event": "other system\'s"}}',
        f"{stamp} WARNING half a record of a killed process {MATERIALIZED[:70]}",
    )
    summary = summarize(engine, [path])
    assert (summary.materialization_events, summary.materialized_tokens) == (5, 5 * 3072)
    assert summary.unparsed_lines == 1
    assert "not a whole audit record" in summary.torn_lines[0]


def test_a_request_goes_by_the_id_that_its_client_sent(log: Log) -> None:
    named = record("materialized", "cmpl-mine-0-1a2b3c4d", client_request_id="mine", tokens=64)
    assert list(summarize("semblend", [log(named)]).requests) == ["mine"]


def test_trtllm_a_landing_without_a_count_is_no_zero_of_its_request(log: Log) -> None:
    summary = summarize("trtllm", [log(json.dumps({"event": "materialized", "request_id": 2}))])
    assert summary.requests["2"].confirmed_tokens is None


def test_trtllm_events_that_share_a_line_are_all_read(log: Log) -> None:
    """A landing behind a lookup must not be lost: the request would look as if nothing had landed."""
    found = json.dumps({"event": "lookup", "request_id": 2, "found": True})
    landed = json.dumps({"event": "materialized", "request_id": 2, "materialized": 64})
    for line in (f"{found}{landed}", f'INFO {{"config": 1}} {found} {landed}'):
        assert summarize("trtllm", [log(line)]).requests["2"].confirmed_tokens == 64
    torn = summarize("trtllm", [log(f"{found}{landed[:30]}")])
    assert torn.unparsed_lines == 1
    assert torn.requests["2"].confirmed_tokens is None


def test_events_that_stand_there_twice_are_counted_once(log: Log) -> None:
    """Logs of a pod that were collected twice overlap; a file may have been copied."""
    stamp = "2026-06-22T18:00:01.123456789Z"
    first = log(f"{stamp} {MATERIALIZED}", name="one.log")
    second = log(f"{stamp} {MATERIALIZED}", f"{stamp} {MATERIALIZED.replace('r1', 'r2')}", name="two.log")
    summary = summarize("vllm", [first, second])
    assert (summary.materialization_events, summary.materialized_tokens) == (2, 2 * 3072)
    assert summary.extra["repeated_events"] == 1
    assert summarize("vllm", [log(*first.read_text().splitlines() * 2)]).materialized_tokens == 3072, "in one file too"
    text = f"{stamp} INFO SemBlend materialized request_id=r1 tokens=880"
    assert summarize("vllm", [log(text, text)]).materialized_tokens == 880
    copies = [log(MATERIALIZED, name=name) for name in ("a.jsonl", "b.jsonl")]
    assert summarize("semblend", copies).materialized_tokens == 3072


def test_two_ranks_that_each_have_a_file_tell_of_the_same_tokens(log: Log) -> None:
    ranks = [log(MATERIALIZED.replace("1000.5", time), name=f"{time}.jsonl") for time in ("1000.6", "1000.7")]
    summary = summarize("semblend", ranks)
    assert (summary.materialization_events, summary.materialized_tokens) == (1, 3072)
    assert summary.requests["r1"].confirmed_tokens == 3072
    assert summary.extra["landings_told_twice"] == 1
    other = log(MATERIALIZED.replace("3072", "1024").replace("1000.5", "1000.8"), name="other.jsonl")
    differing = summarize("semblend", [ranks[0], other])
    assert differing.requests["r1"].confirmed_tokens is None
    assert differing.materialized_tokens == 1024, "what both confirm"


@pytest.mark.parametrize("engine", ["semblend", "vllm"])
@pytest.mark.parametrize("field", ["log", "message", "msg"])
@pytest.mark.parametrize("stamp", ["", "2026-06-22T18:00:01.123456789Z "])
def test_records_that_a_collector_wrapped_in_json_are_found(engine: str, field: str, stamp: str, log: Log) -> None:
    """As Docker keeps a container's log, as log collectors hand it on and JSON loggers write it: the record is a string
    in another object. kubectl puts its time in front of that."""
    wrapped = [
        stamp + json.dumps({"stream": "stdout", field: f"{text}\n", "time": "2026-06-22T18:00:01.123456789Z"})
        for text in ("INFO started", f"(EngineCore pid=7) {at(1)}", at(2))
    ]
    summary = summarize(engine, [log(*wrapped)])
    assert (summary.materialization_events, summary.unparsed_lines) == (2, 0)
    assert summary.requests["r1"].confirmed_tokens == 2 * 3072


@pytest.mark.parametrize("engine", ["semblend", "vllm"])
@pytest.mark.parametrize("prefix", ["", "2026-06-22T18:00:01.123456789Z ", "INFO [x.py:1] {0} "])
def test_a_record_is_found_wherever_its_schema_stands(engine: str, prefix: str, log: Log) -> None:
    """Collectors sort keys, or put theirs first."""
    known = json.loads(MATERIALIZED)
    forms = (
        json.dumps({**known, "time": 1.5}, sort_keys=True),
        json.dumps({"labels": {"pod": {"name": "a{b"}}, **known, "time": 2.5}),
        json.dumps({"level": "info", "record": {"a": 1, **known, "time": 3.5}}) if prefix else at(3),
    )
    summary = summarize(engine, [log(*(f"{prefix}{form}" for form in forms))])
    assert (summary.materialized_tokens, summary.unparsed_lines) == (3 * 3072, 0)


@pytest.mark.parametrize("engine", ["semblend", "vllm"])
def test_a_record_in_a_string_that_nobody_knows_is_not_lost_in_silence(engine: str, log: Log) -> None:
    deep = json.dumps({"fields": {"text": MATERIALIZED}})
    summary = summarize(engine, [log(f"2026-06-22T18:00:01.123456789Z {deep}", at(1))])
    assert (summary.materialized_tokens, summary.unparsed_lines) == (3072, 1)


@pytest.mark.parametrize("reason", [{"a": 1}, ["x"], 7, False])
@pytest.mark.parametrize("engine", ["semblend", "vllm", "trtllm"])
def test_a_lookup_whose_reason_is_no_text_is_unreadable_and_the_summary_can_be_read_back(
    engine: str, reason: Any, log: Log, tmp_path: Path
) -> None:
    told = {"event": "lookup", "request_id": "r2", "found": False, "rejection_reason": reason}
    strange = json.dumps(told) if engine == "trtllm" else record("lookup", "r2", reason=reason)
    summary = summarize(engine, [log(strange, record("lookup", "r1", reason="no_spans"))])
    assert summary.unparsed_lines == 1
    assert summary.lookups == 1
    assert "r2" not in summary.requests
    path = tmp_path / "summary.json"
    path.write_text(summary.model_dump_json())
    assert read_json(path, EngineSummary) == summary
