"""Servers fail in many ways; a run records each and goes on."""

import json

import pytest


def first_try(fault):
    """``fault`` for the first request of each prompt and arm, and a good answer afterwards."""
    return lambda seen, number: fault if seen.headers["x-request-id"].endswith("-001") else None


@pytest.mark.parametrize("fault", ["500", "429", "truncated", "error in stream"])
def test_what_may_pass_is_tried_again_and_the_attempts_are_recorded(stub, gateway_run, read_result, fault):
    stub.fault = first_try(fault)
    assert gateway_run(items=1).exit_code == 0
    (record,) = read_result().requests
    assert (record.status, record.attempts) == ("ok", 2)
    assert record.output.startswith("answer ")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("400", "HTTP 400"),
        ("malformed", "malformed answer: an event is not JSON"),
        ("not a stream", "asked for a stream of events, got application/json"),
    ],
)
def test_what_would_fail_again_is_not_tried_again(stub, gateway_run, read_result, fault, reason):
    stub.fault = lambda seen, number: fault if number == 1 else None
    assert gateway_run(items=3).exit_code == 0
    failed, *others = read_result().requests
    assert (failed.status, failed.attempts) == ("error", 1)
    assert reason in failed.error
    assert failed.ttft_ms is None
    assert failed.output is None
    assert [record.status for record in others] == ["ok", "ok"], "the run goes on"


BROKEN_OFF = {
    '{"object": "error", "message": "out of memory", "code": 400}': "HTTP 400: in the stream: out of memory",
    '{"choices": []}\n\nevent: error\ndata: {"message": "overloaded"}': "HTTP 500: in the stream: overloaded",
    '{"choices": []}\n\nevent: error\ndata: no json': "HTTP 500: in the stream: no json",
    '{"text": "NETWORK ERROR", "error_code": 50004}': "HTTP 500: in the stream: NETWORK ERROR",
    '{"detail": "Internal Server Error"}': "HTTP 500: in the stream: Internal Server Error",
    '{"choices": [{"text": "", "finish_reason": "error"}]}': "finish_reason error",
    '{"choices": [{"text": "", "finish_reason": "abort"}]}': "finish_reason abort",
}


@pytest.mark.parametrize(("event", "reason"), BROKEN_OFF.items())
def test_an_answer_that_the_server_broke_off_is_a_failure_though_its_stream_ends_well(
    stub, gateway_run, read_result, event, reason
):
    stub.events = lambda seen, events: [events[1], event, "[DONE]"] if seen.is_warm else events
    gateway_run("--retries", 0, items=1)
    (record,) = read_result().requests
    assert record.status == "error"
    assert reason in record.error
    assert record.output is None


def test_an_error_that_is_null_and_a_stream_without_a_reason_to_finish_are_no_failures(stub, gateway_run, read_result):
    plain = ['{"error": null, "choices": [{"text": "well"}]}', "[DONE]"]
    stub.events = lambda seen, events: plain
    assert gateway_run(items=1).exit_code == 0
    assert read_result().requests[0].output == "well"


def test_an_answer_that_sglang_aborted_is_a_failure(stub, sembench, write_manifest, read_result, tmp_path):
    def aborted(seen, events):
        event = json.loads(events[0])
        event["meta_info"]["finish_reason"] = {"type": "abort", "message": "KV load failed"}
        return [json.dumps(event), "[DONE]"] if seen.is_warm else events

    stub.events = aborted
    words = ("--manifest", write_manifest(1), "--output", tmp_path / "result.json", "--post-donor-delay-ms", 0)
    sembench("run-live-sglang", *words, "--base-url", stub.url, "--model", "tiny", "--retries", 0)
    (record,) = read_result().requests
    assert record.status == "error"
    assert "finish_reason abort: KV load failed" in record.error


@pytest.mark.parametrize("retries", [0, 1])
def test_retries_have_a_limit(stub, gateway_run, read_result, retries):
    stub.fault = lambda seen, number: "500"
    done = gateway_run("--retries", retries, items=1)
    assert done.exit_code == 1, "not one request succeeded"
    (record,) = read_result().requests
    assert (record.status, record.attempts) == ("error", retries + 1)
    assert "HTTP 500" in record.error


def test_a_server_that_hangs_is_left_after_the_time_limit(stub, gateway_run, read_result):
    stub.fault = lambda seen, number: "hang" if number == 1 else None
    assert gateway_run("--timeout-s", 3, "--retries", 0, items=2).exit_code == 0
    failed, other = read_result().requests
    assert failed.status == "error"
    assert "within 3 s" in failed.error
    assert other.status == "ok"


def test_a_donor_that_fails_leaves_no_measurement(stub, gateway_run, read_result):
    stub.fault = lambda seen, number: "400" if "donor" in seen.headers["x-request-id"] else None
    assert gateway_run("--paired", items=1).exit_code == 1
    cold, warm = read_result().requests
    assert cold.status == "ok"
    assert warm.status == "error"
    assert warm.error.startswith("donor 0000000000000100: HTTP 400")
    assert stub.ids() == ["cold", "donor0"], "a recipient without its donors is not sent"


def test_a_failed_record_keeps_the_id_that_was_sent(stub, gateway_run, read_result):
    stub.fault = lambda seen, number: "400" if number in (1, 2) else None
    gateway_run("--paired", "--exact", items=2)
    records = read_result().requests
    failed = [(record.arm, record.request_id) for record in records if record.status == "error"]
    sent = [seen.headers["x-request-id"] for seen in stub.served]
    assert failed == [("exact", sent[1]), ("warm", sent[2])]
    assert "-exact-" in sent[1]
    assert "-donor0-" in sent[2]


def test_what_was_not_sent_has_no_id(stub, gateway_run, read_result):
    stub.fault = lambda seen, number: "400" if "-cold-" in seen.headers["x-request-id"] else None
    gateway_run("--paired", "--exact", items=1)
    cold, exact, warm = read_result().requests
    assert (cold.request_id is None, exact.request_id, warm.status) == (False, None, "ok")


def test_a_retried_arm_starts_over_in_a_scope_of_its_own(stub, gateway_run, read_result):
    """The broken attempt may have left the prompt's KV behind: its salt and its donors are not used again."""
    stub.fault = first_try("truncated")
    assert gateway_run("--paired", items=1).exit_code == 0
    assert stub.ids() == ["cold", "cold", "donor0", "donor0", "warm"]
    salts = [seen.body["cache_salt"] for seen in stub.served]
    assert salts[0] != salts[1]
    cold = read_result().requests[0]
    assert (cold.attempts, cold.proved_cold) == (2, True)


def test_an_answer_without_usage_is_measured_and_its_lengths_stay_unknown(stub, gateway_run, read_result):
    stub.usage = False
    assert gateway_run(items=1).exit_code == 0
    (record,) = read_result().requests
    assert record.status == "ok"
    assert (record.prompt_tokens, record.engine_cached_tokens, record.total_blocks) == (None, None, None)


def test_an_empty_answer_has_no_time_to_first_token(stub, gateway_run, read_result):
    stub.answer = lambda seen: ""
    assert gateway_run(items=1).exit_code == 0
    (record,) = read_result().requests
    assert (record.status, record.output, record.ttft_ms) == ("ok", "", None)


def test_ten_failures_in_a_row_stop_the_run_and_resume_serves_them_again(stub, gateway_run, read_result, tmp_path):
    stub.fault = lambda seen, number: "400" if number >= 4 else None
    done = gateway_run(items=20)
    assert done.exit_code == 3
    assert "10 requests failed in a row" in done.output
    assert "--resume" in done.output
    assert not (tmp_path / "result.json").exists()
    assert (tmp_path / "result.json.partial.jsonl").exists()

    stub.fault = lambda seen, number: None
    assert gateway_run("--resume", items=20).exit_code == 0
    result = read_result()
    assert [record.status for record in result.requests] == ["ok"] * 20
    assert result.config["resumed"] == 1
    assert not (tmp_path / "result.json.partial.jsonl").exists()


def test_failures_with_successes_between_them_do_not_stop_the_run(stub, gateway_run, read_result):
    stub.fault = lambda seen, number: "400" if "donor" in seen.headers["x-request-id"] else None
    assert gateway_run("--paired", items=12).exit_code == 1
    assert sum(record.status == "error" for record in read_result().requests) == 12


def test_text_may_hold_what_unicode_calls_line_ends(stub, gateway_run, read_result):
    text = "one\u2028two\x85three\x0bfour"
    stub.answer = lambda seen: text
    gateway_run(items=1)
    assert read_result().requests[0].output == text


@pytest.mark.parametrize(
    ("pieces", "told"),
    [(("\\ud83d", "\\ude00"), "\U0001f600"), (("\\ud83d", " x"), "\ufffd x"), (("\\ude00\\ud83d",), "\ufffd\ufffd")],
)
def test_a_character_that_was_cut_in_two_is_joined_and_half_a_one_is_replaced(
    stub, gateway_run, read_result, pieces, told
):
    """Gateways that escape JSON may cut between the halves of an emoji."""
    cut = [f'{{"choices": [{{"text": "{piece}", "logprobs": {{"tokens": ["{piece}"]}}}}]}}' for piece in pieces]
    stub.events = lambda seen, events: [*cut, "[DONE]"]
    assert gateway_run(items=1).exit_code == 0
    assert read_result().requests[0].output == told


@pytest.mark.parametrize("depth", [300, 2_000, 100_000])
def test_an_event_that_is_nested_too_deeply_is_a_failure(stub, gateway_run, read_result, depth):
    deep = f'{{"choices": [{{"text": "x", "logprobs": {{"a": {"[" * depth}{"]" * depth}}}}}]}}'
    stub.events = lambda seen, events: [deep, "[DONE]"] if seen.is_warm else events
    assert gateway_run(items=1).exit_code == 1
    assert read_result().requests[0].error == "malformed answer: an event is nested too deeply"


def test_half_a_character_in_an_error_is_replaced(stub, gateway_run, read_result):
    stub.events = lambda seen, events: ['{"error": {"message": "\\ud83d bad", "code": 400}}']
    assert gateway_run(items=1).exit_code == 1
    assert "\ufffd bad" in read_result().requests[0].error


def test_secrets_in_the_environment_are_sent_and_never_written(stub, gateway_run, monkeypatch, tmp_path):
    monkeypatch.setenv("SEMBENCH_API_KEY", "hush-hush")
    gateway_run(items=1)
    assert stub.served[0].headers["authorization"] == "Bearer hush-hush"
    assert "hush-hush" not in (tmp_path / "result.json").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--exact",), "needs --paired"),
        (("--reuse-off", "{"), "not JSON"),
        (("--reuse-off", "[]"), "must be a JSON object"),
        (("--donor-url", "localhost:1"), "--donor-url"),
        (("--donor-url", "http://user:word@host"), "SEMBENCH_API_KEY"),
        (("--reset-url", "here"), "--reset-url"),
        (("--resume", "--overwrite"), "exclude each other"),
        (("--concurrency", 0), "--concurrency"),
    ],
)
def test_wrong_options_are_named_and_end_with_2(gateway_run, words, says):
    done = gateway_run(*words)
    assert done.exit_code == 2
    assert says in done.output


def test_a_manifest_that_is_cut_off_is_refused_with_its_line(stub, sembench, write_manifest, tmp_path):
    manifest = write_manifest(2)
    manifest.write_text(manifest.read_text()[:-40])
    words = ("--manifest", manifest, "--output", tmp_path / "r.json", "--gateway-url", stub.url, "--model", "tiny")
    done = sembench("run-live-gateway", *words)
    assert done.exit_code == 2
    assert f"{manifest}:2" in done.output
    assert stub.seen == []


def test_records_are_on_disk_as_soon_as_they_are_made(stub, gateway_run, tmp_path):
    partial = tmp_path / "result.json.partial.jsonl"
    counts = []
    stub.on_request = lambda seen, cached: counts.append(
        sum("record" in json.loads(line) for line in partial.read_text().splitlines()) if partial.exists() else None
    )
    gateway_run(items=3)
    assert counts == [None, None, 0, 0, 0, 1, 1, 2, 2], (
        "preflight twice, warm-up, then donor and recipient of each item"
    )
