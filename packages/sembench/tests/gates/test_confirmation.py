"""What backends confirm is joined by request id, from the result, from engine logs, or both; nobody may contradict."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result as Ended

from sembench.engine_events import summarize
from sembench.results.confirmation import Confirmation, confirm
from sembench.schema import Result

Run = Callable[..., Ended]
UNTOLD = {"confirmed_tokens": None, "advertised_tokens": None}
GATES = (
    *("--min-backend-confirmed-block-rate", "0.05", "--min-materialization-events", "1"),
    *("--min-materialized-tokens", "512", "--max-negative-control-confirmed-rate", "0.0"),
    "--require-materialized-reuse",
    "--require-no-engine-errors",
)


def sent(number: int, role: str = "warm", run: str = "12ab34cd") -> str:
    """An id as the replay sends it."""
    return f"sb-{run}-{number:016x}-{role}-001"


@pytest.fixture
def replayed(bench: Any) -> Result:
    """A live run without an audit stream: four items and a control."""
    result = bench.result("warm", warm=UNTOLD)
    for number, record in enumerate(result.requests):
        record.request_id = sent(number)
    return Result.model_validate(result.model_dump())


Event = tuple[str, str, dict[str, Any]]
"""A name, the id that the client sent, and the event's own fields."""


def audit(path: Path, *events: Event) -> Path:
    """Records as vLLM's adapter writes them."""
    with path.open("w") as stream:
        for name, client, fields in events:
            envelope = {"schema": "semblend.audit.v1", "event": name, "time": time.time(), "engine": "vllm"}
            ids = {"request_id": f"cmpl-{client}-0-1a2b3c4d", "client_request_id": client, "namespace": None}
            stream.write(json.dumps({**envelope, **ids, **fields}) + "\n")
    return path


def landed(client: str, tokens: int) -> list[Event]:
    return [("lookup", client, {"reason": None, "spans": 1}), ("materialized", client, {"tokens": tokens})]


def declined(client: str, reason: str) -> list[Event]:
    return [
        ("lookup", client, {"reason": reason, "spans": 0}),
        ("declined", client, {"reason": reason, "stage": "lookup"}),
    ]


def reused(tokens: int = 128, run: str = "12ab34cd", control: int = 0) -> list[Event]:
    """Four requests with so many tokens each; the control finds nothing, or so many."""
    events = [event for number in range(4) for event in landed(sent(number, run=run), tokens)]
    name = sent(4, run=run)
    return events + (landed(name, control) if control else declined(name, "no_spans"))


def text_log(path: Path, *, run: str = "12ab34cd", tokens: int = 128, upto: int = 4) -> Path:
    """Another system's log. It has no word for requests that found nothing."""
    lines = ["INFO engine started"]
    for number in range(5):
        lines.append(f"INFO SemBlend donor registered request_id=cmpl-{sent(number, 'donor0', run)}-0 tokens=150")
        if number < upto:
            lines.append(f"INFO SemBlend materialized request_id=cmpl-{sent(number, run=run)}-0 tokens={tokens}")
    path.write_text("\n".join(lines) + "\n")
    return path


def joined(result: Result, **logs: Path) -> Confirmation:
    return confirm(result, [summarize(engine, [path]) for engine, path in logs.items()])


def test_an_audit_stream_tells_what_the_result_does_not(replayed: Result, tmp_path: Path) -> None:
    found = joined(replayed, semblend=audit(tmp_path / "audit.jsonl", *reused()))
    figures = found.aggregate
    assert not found.contradictions
    assert (figures.materialization_events, figures.materialized_tokens) == (4, 512)
    rate, control = figures.backend_confirmed_block_rate, figures.negative_control_backend_confirmed_rate
    assert (rate.numerator, rate.denominator) == (32, 50)
    assert (control.value, control.denominator) == (0, 10)
    assert figures.decline_reasons == {"no_spans": 1}


def test_another_systems_log_tells_the_same(replayed: Result, tmp_path: Path) -> None:
    """Also of the control, by its silence: it names the control's donor, and so covers the control."""
    one = joined(replayed, semblend=audit(tmp_path / "audit.jsonl", *reused())).aggregate
    other = joined(replayed, vllm=text_log(tmp_path / "vllm.log")).aggregate
    for figure in ("backend_confirmed_block_rate", "negative_control_backend_confirmed_rate", "materialized_tokens"):
        assert getattr(one, figure) == getattr(other, figure)


def test_a_log_that_begins_after_the_run_did_says_nothing_of_what_came_before(replayed: Result, tmp_path: Path) -> None:
    path = text_log(tmp_path / "vllm.log")
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[-2:]) + "\n")  # the last item's reuse and the control's donor
    figures = joined(replayed, vllm=path).aggregate
    assert figures.materialized_tokens == 128
    assert figures.backend_confirmed_rate_by_request.numerator == 1
    assert figures.negative_control_backend_confirmed_rate.value == 0


def test_two_sources_that_agree_pass_and_the_gates_name_both(
    bench: Any, sembench: Run, replayed: Result, tmp_path: Path
) -> None:
    logs = {"semblend": audit(tmp_path / "audit.jsonl", *reused()), "vllm": text_log(tmp_path / "vllm.log")}
    ended = judge(bench, sembench, replayed, tmp_path, logs)
    assert ended.exit_code == 0, ended.output
    assert "audit.jsonl and vllm summary of" in " ".join(ended.stdout.split())


def judge(bench: Any, sembench: Run, result: Result, folder: Path, logs: dict[str, Path]) -> Ended:
    summaries = []
    for engine, path in logs.items():
        summaries.append(folder / f"{engine}-events.json")
        summaries[-1].write_text(summarize(engine, [path]).model_dump_json())
    named = ("--engine-summary", *summaries) if summaries else ()
    return sembench("assert-result-gates", "--result", bench.save(result), *named, *GATES)


def test_every_gate_names_its_source(bench: Any, sembench: Run, replayed: Result, tmp_path: Path) -> None:
    ended = judge(bench, sembench, replayed, tmp_path, {"vllm": text_log(tmp_path / "vllm.log")})
    assert ended.exit_code == 0, ended.output
    assert ended.stdout.count("vllm summary of") == len(GATES) - 4  # four of them have a value


def test_sources_that_contradict_each_other_fail(bench: Any, sembench: Run, replayed: Result, tmp_path: Path) -> None:
    logs = {"semblend": audit(tmp_path / "a.jsonl", *reused()), "vllm": text_log(tmp_path / "v.log", tokens=144)}
    ended = judge(bench, sembench, replayed, tmp_path, logs)
    assert ended.exit_code == 1
    assert f"tell different confirmed tokens for 4 requests: {sent(0)}: 128 and 144" in ended.stderr


def test_a_log_that_is_silent_of_what_another_saw_contradicts_it(replayed: Result, tmp_path: Path) -> None:
    replayed.requests[3].confirmed_tokens = 128
    (why,) = joined(replayed, vllm=text_log(tmp_path / "v.log", upto=3)).contradictions
    assert f"{sent(3)}: 128 and 0" in why


def test_a_log_of_another_run_fails(bench: Any, sembench: Run, replayed: Result, tmp_path: Path) -> None:
    for logs in (
        {"semblend": audit(tmp_path / "a.jsonl", *reused(run="99999999"))},
        {"vllm": text_log(tmp_path / "v.log", run="99999999")},
    ):
        ended = judge(bench, sembench, replayed, tmp_path, logs)
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


def test_a_polluted_control_fails(bench: Any, sembench: Run, replayed: Result, tmp_path: Path) -> None:
    log = audit(tmp_path / "a.jsonl", *reused(control=64))
    ended = judge(bench, sembench, replayed, tmp_path, {"semblend": log})
    assert ended.exit_code == 1
    assert "--max-negative-control-confirmed-rate: FAIL: wanted <= 0, found 0.4000 (4 of 10)" in ended.stderr


def test_reuse_that_was_off_fails_and_says_why_requests_were_declined(
    bench: Any, sembench: Run, replayed: Result, tmp_path: Path
) -> None:
    events = [event for number in range(5) for event in declined(sent(number), "no_salt")]
    ended = judge(bench, sembench, replayed, tmp_path, {"semblend": audit(tmp_path / "a.jsonl", *events)})
    assert ended.exit_code == 1
    assert "--require-materialized-reuse: FAIL" in ended.stderr
    assert "0 tokens, 0 events; declined: no_salt 5" in ended.stderr


def test_a_log_of_a_server_that_wrote_no_event_fails(
    bench: Any, sembench: Run, replayed: Result, tmp_path: Path
) -> None:
    path = tmp_path / "v.log"
    path.write_text("INFO started\n")
    ended = judge(bench, sembench, replayed, tmp_path, {"vllm": path})
    assert ended.exit_code == 1
    assert "no event of reuse is in the log; was reuse on" in ended.stderr


def test_a_missing_summary_fails_and_names_what_writes_it(
    bench: Any, sembench: Run, replayed: Result, tmp_path: Path
) -> None:
    ended = judge(bench, sembench, replayed, tmp_path, {})
    assert ended.exit_code == 1
    assert "no backend event covers a request: give --engine-summary" in ended.stderr
    absent = tmp_path / "absent.json"
    ended = sembench("assert-result-gates", "--result", bench.save(replayed), "--engine-summary", absent, *GATES)
    assert ended.exit_code == 1
    assert "no such file: --engine-summary" in ended.stderr
    assert "--require-no-engine-errors: FAIL" in ended.stderr


def test_replicas_that_each_saw_some_of_the_requests_are_one_source(replayed: Result, tmp_path: Path) -> None:
    events = reused()
    one, other = audit(tmp_path / "0.jsonl", *events[:4]), audit(tmp_path / "1.jsonl", *events[4:])
    found = confirm(replayed, [summarize("semblend", [path]) for path in (one, other)])
    assert not found.contradictions
    assert found.aggregate.materialized_tokens == 512
    assert found.aggregate.negative_control_backend_confirmed_rate.value == 0
