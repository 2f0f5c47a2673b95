"""The backend's own events decide what was reused; the engine marks the ids it was given."""

import json

import pytest

DECLINED = "no_spans"


@pytest.fixture
def audit(tmp_path):
    """Appends the records that an adapter writes for one request, under the id that the engine made of it."""
    path = tmp_path / "audit.jsonl"

    def tell(request_id, *, landed=None, reason=None):
        events = [{"event": "lookup", "reason": reason, "spans": 0 if reason else 2, "microseconds": 250.0}]
        if reason:
            events.append({"event": "declined", "reason": reason, "stage": "lookup", "donor_id": None})
        else:
            events.append({"event": "load_advertised", "tokens": 40, "spans": 2})
        if landed:
            events.append({"event": "materialized", "tokens": landed, "layers": 2, "bytes": None, "microseconds": None})
        envelope = {
            "schema": "semblend.audit.v1",
            "time": 1767225600.0,
            "engine": "stub",
            "request_id": f"cmpl-{request_id}-0-8f3a",
            "namespace": None,
        }
        with path.open("a") as stream:
            stream.writelines(json.dumps(envelope | event) + "\n" for event in events)

    return tell


def warm(result):
    return [record for record in result.requests if record.arm == "warm"]


def test_confirmed_tokens_come_from_what_landed(stub, gateway_run, read_result, audit, tmp_path):
    def on_request(seen, cached):
        if "-warm-" in seen.headers["x-request-id"]:
            audit(seen.headers["x-request-id"], landed=20)

    stub.on_request = on_request
    assert gateway_run("--connector-audit", tmp_path / "audit.jsonl", "--paired", items=2).exit_code == 0
    result = read_result()
    first = warm(result)[0]
    assert (first.advertised_tokens, first.confirmed_tokens, first.confirmed_blocks) == (40, 20, 1)
    assert (first.spans, first.lookup_us, first.outcome) == (2, 250.0, "materialized")
    assert result.aggregate.backend_confirmed_block_rate.numerator == 2
    assert result.aggregate.materialized_reuse_rate.numerator == 40
    assert result.paired.hit_rate.value == 1.0


def test_a_declined_request_has_zero_confirmed_and_one_without_events_has_none(
    stub, gateway_run, read_result, audit, tmp_path
):
    def on_request(seen, cached):
        if "-warm-" in seen.headers["x-request-id"] and f"{0:016x}" in seen.headers["x-request-id"]:
            audit(seen.headers["x-request-id"], reason=DECLINED)

    stub.on_request = on_request
    assert gateway_run("--connector-audit", tmp_path / "audit.jsonl", items=2).exit_code == 0
    declined, silent = read_result().requests
    assert (declined.advertised_tokens, declined.confirmed_tokens) == (0, 0)
    assert declined.decline_reason == DECLINED
    assert declined.outcome == "declined"
    assert (silent.advertised_tokens, silent.confirmed_tokens, silent.outcome) == (None, None, None)


def test_a_missing_stream_costs_no_measurement(gateway_run, tmp_path, audit, read_result, stub):
    elsewhere = tmp_path / "later.jsonl"
    done = gateway_run("--connector-audit", elsewhere, items=2)
    assert done.exit_code == 2
    assert f"--connector-audit {elsewhere}: no such file" in done.output
    assert "--resume" in done.output

    served = len(stub.served)
    audit("sb-00000000-0000000000000000-warm-001", landed=1)
    (tmp_path / "audit.jsonl").rename(elsewhere)
    assert gateway_run("--connector-audit", elsewhere, "--resume", items=2).exit_code == 0
    assert len(stub.served) == served, "nothing had to be served again"
    assert len(read_result().requests) == 2


def test_what_lands_in_the_stream_behind_its_lookup_is_waited_for(
    stub, gateway_run, read_result, audit, tmp_path, monkeypatch
):
    def on_request(seen, cached):
        if "-warm-" in seen.headers["x-request-id"]:
            audit(seen.headers["x-request-id"])  # looked up and advertised

    def write_the_rest(seconds):
        if not seconds:
            return  # the stub's own
        for seen in [seen for seen in stub.served if "-warm-" in seen.headers["x-request-id"]]:
            audit(seen.headers["x-request-id"], landed=33)

    stub.on_request = on_request
    monkeypatch.setattr("sembench.live.replay.time.sleep", write_the_rest)
    assert gateway_run("--connector-audit", tmp_path / "audit.jsonl", items=2).exit_code == 0
    assert [record.confirmed_tokens for record in read_result().requests] == [33, 33]


def test_tries_of_one_request_that_differ_leave_it_unknown(stub, gateway_run, read_result, audit, tmp_path):
    """The engine's own ids differ, and the stream names no client's: a gateway sent the request twice."""

    def on_request(seen, cached):
        name = seen.headers["x-request-id"]
        if "-warm-" in name:
            audit(name, landed=33)
            audit(f"{name}-again", landed=17 if f"{0:016x}" in name else 33)

    stub.on_request = on_request
    assert gateway_run("--connector-audit", tmp_path / "audit.jsonl", items=2).exit_code == 0
    assert [record.confirmed_tokens for record in read_result().requests] == [None, 33]
