"""What backends confirm is joined by request id, from the result, from engine logs, or both; nobody may contradict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result as Ended

from sembench.engine_events import summarize
from sembench.results.confirmation import Confirmation, confirm
from sembench.schema import Result

Run = Callable[..., Ended]
GATES = (
    *("--min-backend-confirmed-block-rate", "0.05", "--min-materialization-events", "1"),
    *("--min-materialized-tokens", "512", "--max-negative-control-confirmed-rate", "0.0"),
    "--require-materialized-reuse",
    "--require-no-engine-errors",
)


def joined(result: Result, **logs: Path) -> Confirmation:
    return confirm(result, [summarize(engine, [path]) for engine, path in logs.items()])


def test_an_audit_stream_tells_what_the_result_does_not(logged: Any, replayed: Result, tmp_path: Path) -> None:
    found = joined(replayed, semblend=logged.audit(tmp_path / "audit.jsonl", *logged.reused()))
    figures = found.aggregate
    assert not found.contradictions
    assert (figures.materialization_events, figures.materialized_tokens) == (4, 512)
    rate, control = figures.backend_confirmed_block_rate, figures.negative_control_backend_confirmed_rate
    assert (rate.numerator, rate.denominator) == (32, 50)
    assert (control.value, control.denominator) == (0, 10)
    assert figures.decline_reasons == {"no_spans": 1}


def test_another_systems_log_tells_the_same(logged: Any, replayed: Result, tmp_path: Path) -> None:
    """Also of the control, by its silence: it names the control's donor, and so covers the control."""
    one = joined(replayed, semblend=logged.audit(tmp_path / "audit.jsonl", *logged.reused())).aggregate
    other = joined(replayed, vllm=logged.text_log(tmp_path / "vllm.log")).aggregate
    for figure in ("backend_confirmed_block_rate", "negative_control_backend_confirmed_rate", "materialized_tokens"):
        assert getattr(one, figure) == getattr(other, figure)


def test_a_log_that_begins_after_the_run_did_says_nothing_of_what_came_before(
    logged: Any, replayed: Result, tmp_path: Path
) -> None:
    path = logged.text_log(tmp_path / "vllm.log")
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[-2:]) + "\n")  # the last item's reuse and the control's donor
    figures = joined(replayed, vllm=path).aggregate
    assert figures.materialized_tokens == 128
    assert figures.backend_confirmed_rate_by_request.numerator == 1
    assert figures.negative_control_backend_confirmed_rate.value == 0


def test_two_sources_that_agree_pass_and_the_gates_name_both(
    logged: Any, judged: Run, replayed: Result, tmp_path: Path
) -> None:
    logs = {
        "semblend": logged.audit(tmp_path / "audit.jsonl", *logged.reused()),
        "vllm": logged.text_log(tmp_path / "vllm.log"),
    }
    ended = judged(replayed, logs)
    assert ended.exit_code == 0, ended.output
    assert "audit.jsonl and vllm summary of" in " ".join(ended.stdout.split())


def test_every_gate_names_its_source(logged: Any, judged: Run, replayed: Result, tmp_path: Path) -> None:
    ended = judged(replayed, {"vllm": logged.text_log(tmp_path / "vllm.log")})
    assert ended.exit_code == 0, ended.output
    assert ended.stdout.count("vllm summary of") == len(GATES) - 4  # four of them have a value


def test_sources_that_contradict_each_other_fail(logged: Any, judged: Run, replayed: Result, tmp_path: Path) -> None:
    logs = {
        "semblend": logged.audit(tmp_path / "a.jsonl", *logged.reused()),
        "vllm": logged.text_log(tmp_path / "v.log", tokens=144),
    }
    ended = judged(replayed, logs)
    assert ended.exit_code == 1
    assert f"tell different confirmed tokens for 4 requests: {logged.sent(0)}: 128 and 144" in ended.stderr


def test_a_log_that_is_silent_of_what_another_saw_contradicts_it(logged: Any, replayed: Result, tmp_path: Path) -> None:
    replayed.requests[3].confirmed_tokens = 128
    (why,) = joined(replayed, vllm=logged.text_log(tmp_path / "v.log", upto=3)).contradictions
    assert f"{logged.sent(3)}: 128 and 0" in why


def test_a_log_of_another_run_fails(logged: Any, judged: Run, replayed: Result, tmp_path: Path) -> None:
    for logs in (
        {"semblend": logged.audit(tmp_path / "a.jsonl", *logged.reused(run="99999999"))},
        {"vllm": logged.text_log(tmp_path / "v.log", run="99999999")},
    ):
        ended = judged(replayed, logs)
        assert ended.exit_code == 1
        assert "of another run: it names" in ended.stderr


def test_a_log_without_request_ids_is_told_by_its_time(replayed: Result, tmp_path: Path) -> None:
    path = tmp_path / "v.log"
    path.write_text("2020-01-01T00:00:00Z INFO SemBlend materialized tokens=640\n")
    (why,) = joined(replayed, vllm=path).contradictions
    assert "of another run: all of its events are before or after this one" in why
    now = replayed.run.finished_at
    path.write_text(f"{now} INFO SemBlend materialized tokens=640\n")
    found = joined(replayed, vllm=path)
    assert not found.contradictions
    assert "names no request" in found.notes[0]


def test_a_polluted_control_fails(logged: Any, judged: Run, replayed: Result, tmp_path: Path) -> None:
    log = logged.audit(tmp_path / "a.jsonl", *logged.reused(control=64))
    ended = judged(replayed, {"semblend": log})
    assert ended.exit_code == 1
    assert "--max-negative-control-confirmed-rate: FAIL: wanted <= 0, found 0.4000 (4 of 10)" in ended.stderr


def test_reuse_that_was_off_fails_and_says_why_requests_were_declined(
    logged: Any, judged: Run, replayed: Result, tmp_path: Path
) -> None:
    events = [event for number in range(5) for event in logged.declined(logged.sent(number), "no_salt")]
    ended = judged(replayed, {"semblend": logged.audit(tmp_path / "a.jsonl", *events)})
    assert ended.exit_code == 1
    assert "--require-materialized-reuse: FAIL" in ended.stderr
    assert "0 tokens, 0 events; declined: no_salt 5" in ended.stderr


def test_a_log_of_a_server_that_wrote_no_event_fails(judged: Run, replayed: Result, tmp_path: Path) -> None:
    path = tmp_path / "v.log"
    path.write_text("INFO started\n")
    ended = judged(replayed, {"vllm": path})
    assert ended.exit_code == 1
    assert "no event of reuse is in the log; was reuse on" in ended.stderr


def test_a_missing_summary_fails_and_names_what_writes_it(
    judged: Run, bench: Any, sembench: Run, replayed: Result, tmp_path: Path
) -> None:
    ended = judged(replayed, {})
    assert ended.exit_code == 1
    assert "no backend event covers a request: give --engine-summary" in ended.stderr
    absent = tmp_path / "absent.json"
    ended = sembench("assert-result-gates", "--result", bench.save(replayed), "--engine-summary", absent, *GATES)
    assert ended.exit_code == 1
    assert "no such file: --engine-summary" in ended.stderr
    assert "--require-no-engine-errors: FAIL" in ended.stderr


def test_replicas_that_each_saw_some_of_the_requests_are_one_source(
    logged: Any, replayed: Result, tmp_path: Path
) -> None:
    events = logged.reused()
    one, other = logged.audit(tmp_path / "0.jsonl", *events[:4]), logged.audit(tmp_path / "1.jsonl", *events[4:])
    found = confirm(replayed, [summarize("semblend", [path]) for path in (one, other)])
    assert not found.contradictions
    assert found.aggregate.materialized_tokens == 512
    assert found.aggregate.negative_control_backend_confirmed_rate.value == 0


def test_a_gate_says_that_prompt_lengths_are_not_known(
    judged: Any, logged: Any, replayed: Result, tmp_path: Path
) -> None:
    for record in replayed.requests:
        record.prompt_tokens = record.total_blocks = None
    ended = judged(replayed, {"semblend": logged.audit(tmp_path / "a.jsonl", *logged.reused())})
    assert ended.exit_code == 1
    for gate in ("--min-backend-confirmed-block-rate", "--max-negative-control-confirmed-rate"):
        assert f"{gate}: FAIL: no answer says how long its prompt is" in ended.stderr
    assert "no backend event" not in ended.stderr


def test_a_gate_says_that_there_are_no_controls(judged: Any, logged: Any, replayed: Result, tmp_path: Path) -> None:
    replayed.requests.pop()
    ended = judged(replayed, {"semblend": logged.audit(tmp_path / "a.jsonl", *logged.reused()[:8])})
    assert ended.exit_code == 1
    assert "--max-negative-control-confirmed-rate: FAIL: no request is a negative control" in ended.stderr
    assert "no backend event" not in ended.stderr
