"""What is not of this run, not whole, or told twice proves nothing: it passes no gate and shows no control cold."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result as Ended
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sembench.engine_events import summarize
from sembench.results.confirmation import confirm
from sembench.results.gate_evidence import BackendEvidence
from sembench.results.told import Told, told_by_silence
from sembench.schema import EngineRequest, EngineSummary, Result

Run = Callable[..., Ended]


def summary(**fields: Any) -> EngineSummary:
    known = {"engine": "vllm", "inputs": ["vllm.log"], "lines": 100, "unparsed_lines": 0}
    return EngineSummary.model_validate({**known, **fields})


def now(result: Result) -> dict[str, float]:
    """Times inside the run."""
    return {"first_time": time.time(), "last_time": time.time()}


def test_a_summary_that_is_missing_beside_a_good_one_fails(
    judged: Run, logged: Any, replayed: Result, tmp_path: Path
) -> None:
    logs = {"semblend": logged.audit(tmp_path / "a.jsonl", *logged.reused())}
    assert judged(replayed, logs).exit_code == 0
    absent = tmp_path / "absent.json"
    ended = judged(replayed, logs, "--engine-summary", absent)
    assert ended.exit_code == 1
    assert f"no such file: {absent}" in ended.stderr
    assert judged(replayed, logs, "--engine-summary", absent, "--allow-missing").exit_code == 0


def test_a_log_of_another_run_beside_a_good_one_fails(
    judged: Run, logged: Any, replayed: Result, tmp_path: Path
) -> None:
    good = logged.audit(tmp_path / "a.jsonl", *logged.reused())
    for other in (
        logged.text_log(tmp_path / "names.log", run="99999999"),
        logged.audit(tmp_path / "old.jsonl", *logged.reused(run="99999999"), at=1_600_000_000.0),
    ):
        engine = "semblend" if other.suffix == ".jsonl" else "vllm"
        ended = judged(replayed, {"semblend": good, f"{engine} 2": other})
        assert ended.exit_code == 1, ended.output
        assert f"{other.name}: of another run" in ended.stderr


def test_a_replica_that_served_others_meanwhile_is_no_log_of_another_run(
    logged: Any, replayed: Result, tmp_path: Path
) -> None:
    good = logged.audit(tmp_path / "a.jsonl", *logged.reused())
    meanwhile = logged.audit(tmp_path / "b.jsonl", *logged.landed("somebody-else", 640))
    found = confirm(replayed, [summarize("semblend", [path]) for path in (good, meanwhile)])
    assert not found.contradictions
    assert any("names no request of this run" in note for note in found.notes)
    assert found.aggregate.materialized_tokens == 512


def test_a_replica_all_of_whose_requests_failed_is_no_log_of_another_run(
    logged: Any, replayed: Result, tmp_path: Path
) -> None:
    failed = replayed.requests[3]
    replayed.requests[3] = failed.model_copy(update={"status": "error", "error": "x", "prompt_tokens": None})
    good = logged.audit(tmp_path / "a.jsonl", *(each for each in logged.reused() if each[1] != logged.sent(3)))
    broken = logged.audit(tmp_path / "b.jsonl", *logged.landed(logged.sent(3), 640))
    found = confirm(replayed, [summarize("semblend", [path]) for path in (good, broken)])
    assert not found.contradictions
    assert found.aggregate.materialized_tokens == 3 * 128, "what landed for it is no figure of the run"


def test_other_clients_tokens_pass_no_gate_on_reuse(judged: Run, logged: Any, replayed: Result, tmp_path: Path) -> None:
    """Of this run's requests the log knows only that they were looked up."""
    ours = [("lookup", logged.sent(number), {"reason": None, "spans": 1}) for number in range(5)]
    for stranger in ("somebody-else", "4711"):
        log = logged.audit(tmp_path / "a.jsonl", *ours, *logged.landed(stranger, 4096))
        ended = judged(replayed, {"semblend": log})
        assert ended.exit_code == 1
        for gate in ("--min-materialized-tokens", "--min-materialization-events", "--require-materialized-reuse"):
            assert f"{gate}: FAIL" in ended.stderr


def test_tokens_without_a_name_may_be_another_clients(replayed: Result) -> None:
    told = {"materialization_events": 2, "materialized_tokens": 1280, **now(replayed)}
    nameless = summary(**told)
    assert BackendEvidence.of(replayed, [nameless]).tokens == 1280
    mixed = summary(**told, requests={"somebody-else": EngineRequest(confirmed_tokens=0)})
    replica = summary(requests={replayed.requests[0].request_id: EngineRequest()}, inputs=["b.log"], **now(replayed))
    evidence = BackendEvidence.of(replayed, [mixed, replica])
    assert (evidence.tokens, evidence.events) == (None, None)
    assert "other clients" in evidence.remedy


def test_tokens_that_no_name_and_no_time_ties_to_the_run_are_not_its(replayed: Result) -> None:
    told = {"materialization_events": 2, "materialized_tokens": 1280}
    evidence = BackendEvidence.of(replayed, [summary(**told)])
    assert evidence.tokens is None
    assert "names no request and no time" in evidence.remedy
    longer = summary(**told, first_time=time.time() - 3600, last_time=time.time())
    evidence = BackendEvidence.of(replayed, [longer])
    assert evidence.tokens is None
    assert "--since-time" in evidence.remedy


def test_one_log_in_two_summaries_is_counted_once(replayed: Result) -> None:
    told = {"materialization_events": 1, "materialized_tokens": 640, **now(replayed)}
    one = summary(**told)
    for other in (one, summary(**told, inputs=["copy.log"]), summary(**told, engine="sglang")):
        evidence = BackendEvidence.of(replayed, [one, other])
        assert (evidence.tokens, evidence.events) == (640, 1)
    replica = summary(**{**told, "materialized_tokens": 600}, inputs=["replica.log"])
    assert BackendEvidence.of(replayed, [one, replica]).tokens == 1240


def test_a_shortfall_is_not_made_good_by_a_copy_or_by_other_clients(bench: Any, replayed: Result) -> None:
    result = bench.result("warm")
    for number, record in enumerate(result.requests):
        record.request_id = replayed.requests[number].request_id
    half = summary(materialization_events=2, materialized_tokens=256, **now(replayed))
    ours = {result.requests[0].request_id: EngineRequest(confirmed_tokens=128)}
    others = summary(
        materialization_events=9,
        materialized_tokens=4096,
        requests={**ours, "x": EngineRequest(confirmed_tokens=3968)},
        **now(replayed),
    )
    for summaries in ([half, half], [others]):
        assert any("512 materialized tokens" in why for why in confirm(result, summaries).contradictions)


def test_an_empty_log_beside_a_good_one_leaves_errors_unknown(replayed: Result) -> None:
    assert BackendEvidence.of(replayed, [summary(**now(replayed))]).errors == 0
    empty = summary(lines=0, inputs=["empty.log"])
    assert BackendEvidence.of(replayed, [summary(**now(replayed)), empty]).errors is None
    assert BackendEvidence.of(replayed, [summary(errors=2, **now(replayed)), empty]).errors == 2


def test_a_log_that_breaks_off_says_nothing_of_what_came_later(
    judged: Run, logged: Any, replayed: Result, tmp_path: Path
) -> None:
    """The control came last: a log that was fetched too early must not show it cold."""
    whole = logged.text_log(tmp_path / "vllm.log")
    early = tmp_path / "early.log"
    early.write_text("\n".join(whole.read_text().splitlines()[:-3]) + "\n")
    control = confirm(replayed, [summarize("vllm", [early])]).aggregate.negative_control_backend_confirmed_rate
    assert control is None or control.value is None
    ended = judged(replayed, {"vllm": early})
    assert "--max-negative-control-confirmed-rate: FAIL" in ended.stderr


def test_an_item_that_was_under_way_when_the_log_was_fetched_is_unknown(
    logged: Any, replayed: Result, tmp_path: Path
) -> None:
    whole = logged.text_log(tmp_path / "vllm.log").read_text().splitlines()
    early = tmp_path / "early.log"
    early.write_text("\n".join(whole[:6]) + "\n")  # up to the donor of the third item
    assert whole[5].split()[4].startswith(f"request_id=cmpl-{logged.sent(2, 'donor0')}")
    assert logged.sent(2) not in told_by_silence(replayed, [Told(summarize("vllm", [early]), replayed)])
    early.write_text("\n".join([*whole[:4], *whole[5:8]]) + "\n")  # the second item's landing is not there
    assert list(told_by_silence(replayed, [Told(summarize("vllm", [early]), replayed)])) == [logged.sent(1)]
    replayed.config["concurrency"] = 3
    assert not told_by_silence(replayed, [Told(summarize("vllm", [early]), replayed)])


def test_silence_tells_nothing_of_requests_that_another_replica_served(
    judged: Run, logged: Any, replayed: Result, tmp_path: Path
) -> None:
    """The log of one replica, from before the run to its end; the control went to the other one."""
    whole = logged.text_log(tmp_path / "vllm.log").read_text().splitlines()
    control = replayed.requests.pop(4)
    replayed.requests.insert(2, control)
    half = tmp_path / "half.log"
    half.write_text("\n".join(line for line in whole if f"{4:016x}" not in line) + "\n")
    assert not told_by_silence(replayed, [Told(summarize("vllm", [half]), replayed)])
    ended = judged(replayed, {"vllm": half})
    assert ended.exit_code == 1
    assert "--max-negative-control-confirmed-rate: FAIL" in ended.stderr


def test_silence_tells_nothing_of_a_recipient_that_was_routed_away_from_its_donor(
    logged: Any, replayed: Result, tmp_path: Path
) -> None:
    told = [Told(summarize("vllm", [logged.text_log(tmp_path / "vllm.log")]), replayed)]
    for record in replayed.requests:
        record.route, record.donor_workers = {"x-smg-routed-worker-id": "a"}, ["a"]
    assert list(told_by_silence(replayed, told)) == [logged.sent(4)]
    replayed.requests[4].route = {"x-smg-routed-worker-id": "b"}
    assert not told_by_silence(replayed, told)


def test_landings_without_a_name_may_be_those_of_any_request_that_the_log_names(
    judged: Run, logged: Any, replayed: Result, tmp_path: Path
) -> None:
    """vLLM's lines of lookups name their requests, and those of landings do not, or not all of them."""
    looked_up = [
        f"INFO SemBlend semantic lookup hit request_id=cmpl-{logged.sent(n)}-0 similarity=0.9" for n in range(5)
    ]
    landed = [f"INFO SemBlend materialized request_id=cmpl-{logged.sent(n)}-0 tokens=128" for n in range(4)]
    nameless = "INFO SemBlend materialized tokens=128"
    donors = [line for line in logged.text_log(tmp_path / "vllm.log").read_text().splitlines() if "donor" in line]
    log = tmp_path / "nameless.log"
    for lines in ([*looked_up, *[nameless] * 5], [*looked_up, *landed, nameless], [*donors, *landed, nameless]):
        log.write_text("\n".join(lines) + "\n")
        ended = judged(replayed, {"vllm": log})
        assert "--max-negative-control-confirmed-rate: FAIL" in ended.stderr, lines


def test_a_damaged_file_proves_neither_cold_controls_nor_the_absence_of_errors(
    judged: Run, logged: Any, replayed: Result, tmp_path: Path
) -> None:
    lines = logged.text_log(tmp_path / "vllm.log").read_text() + "INFO something else\n" * 5000
    packed = tmp_path / "vllm.log.gz"
    packed.write_bytes(gzip.compress(lines.encode(), mtime=0)[:-12])
    ended = judged(replayed, {"vllm": packed})
    assert ended.exit_code == 1
    assert "--max-negative-control-confirmed-rate: FAIL" in ended.stderr
    assert "--require-no-engine-errors: FAIL" in ended.stderr


def test_more_tokens_than_the_prompt_has_are_a_contradiction(
    bench: Any, judged: Run, logged: Any, replayed: Result, tmp_path: Path
) -> None:
    ended = judged(replayed, {"semblend": logged.audit(tmp_path / "a.jsonl", *logged.reused(tokens=320))})
    assert ended.exit_code == 1
    assert f"{logged.sent(0)}: 320 confirmed tokens of a prompt of 160" in ended.stderr
    own = bench.result("warm", warm={"confirmed_tokens": 320})
    assert confirm(own, []).contradictions


def test_a_control_that_took_less_than_a_block_is_not_cold(
    judged: Run, logged: Any, replayed: Result, tmp_path: Path
) -> None:
    ended = judged(replayed, {"semblend": logged.audit(tmp_path / "a.jsonl", *logged.reused(control=15))})
    assert ended.exit_code == 1
    assert "--max-negative-control-confirmed-rate: FAIL: wanted <= 0, found 0.1000 (1 of 10)" in ended.stderr


def test_pairs_whose_cold_arm_reused_kv_by_the_engines_word_do_not_count(
    bench: Any, logged: Any, sembench: Run, tmp_path: Path
) -> None:
    untold = {"confirmed_tokens": None, "advertised_tokens": None}
    result = bench.result("cold", "warm", cold=untold, warm=untold)
    for record in result.requests:
        record.request_id = logged.sent(int(record.item_id, 16), record.arm)
    cold = [event for number in range(4) for event in logged.landed(logged.sent(number, "cold"), 64)]
    events = tmp_path / "events.json"
    log = logged.audit(tmp_path / "a.jsonl", *cold, *logged.reused())
    events.write_text(summarize("semblend", [log]).model_dump_json())
    gate = ("assert-result-gates", "--result", bench.save(result), "--min-blended-ttft-speedup", "1.5")
    assert sembench(*gate).exit_code == 0
    ended = sembench(*gate, "--engine-summary", events)
    assert ended.exit_code == 1
    assert "no clean pair" in ended.stderr


def test_reuse_without_an_advertised_load_is_no_miss(logged: Any, bench: Any, tmp_path: Path) -> None:
    """SGLang's adapter writes no such event: that nothing was advertised is then not known."""
    untold = {"confirmed_tokens": None, "advertised_tokens": None}
    result = bench.result("cold", "warm", cold=untold, warm=untold)
    for record in result.requests:
        record.request_id = logged.sent(int(record.item_id, 16), record.arm)
    log = logged.audit(tmp_path / "a.jsonl", *logged.reused())
    found = confirm(result, [summarize("semblend", [log])])
    assert found.aggregate.materialized_reuse_rate.value is None
    assert found.paired is not None
    assert found.paired.miss_tax_ms is not None
    assert found.paired.miss_tax_ms.n == 1, "the control alone"


def test_an_id_inside_a_longer_one_is_another_request(replayed: Result) -> None:
    replayed.requests[0].request_id = "run-1"
    told = summary(requests={"cmpl-run-12-0": EngineRequest(confirmed_tokens=128)}, **now(replayed))
    found = confirm(replayed, [told])
    assert found.aggregate.materialized_tokens is None


def test_two_tries_of_one_request_that_differ_leave_it_unknown(replayed: Result, logged: Any) -> None:
    """A gateway that tries again sends the same id to another engine, or twice to one."""
    name = logged.sent(0)
    for counts, expected in (((128, 128), 128), ((128, 64), None), ((0, 64), None), ((None, 64), 64)):
        tries = {f"cmpl-{name}-0-{n}": EngineRequest(confirmed_tokens=count) for n, count in enumerate(counts)}
        total = sum(count or 0 for count in counts)
        told = summary(requests=tries, materialized_tokens=total, materialization_events=2, **now(replayed))
        assert confirm(replayed, [told]).aggregate.materialized_tokens == expected


def test_the_audit_file_of_a_run_keeps_tries_apart_too(logged: Any, tmp_path: Path) -> None:
    path = logged.audit(tmp_path / "a.jsonl", *logged.landed("mine", 64))
    again = [json.loads(line) for line in path.read_text().splitlines()]
    for record in again:
        record["request_id"] = "cmpl-mine-0-ffffffff"
    with path.open("a") as stream:
        stream.writelines(json.dumps(record) + "\n" for record in again)
    assert summarize("semblend", [path]).requests["mine"].confirmed_tokens == 64


def test_an_engines_own_numbers_are_no_names_of_another_run(judged: Run, replayed: Result, tmp_path: Path) -> None:
    """TensorRT-LLM counts its requests: they cannot be joined, and they are no strangers'."""
    path = tmp_path / "trtllm.jsonl"
    landed = [{"event": "materialized", "request_id": n, "materialized": 128, "time": time.time()} for n in range(4)]
    path.write_text("".join(json.dumps(event) + "\n" for event in landed))
    evidence = BackendEvidence.of(replayed, [summarize("trtllm", [path])])
    assert (evidence.events, evidence.tokens, evidence.contradictions) == (4, 512, [])
    assert "--require-materialized-reuse: FAIL" not in judged(replayed, {"trtllm": path}).stderr
    path.write_text("".join(json.dumps({**event, "time": 1_600_000_000.0}) + "\n" for event in landed))
    assert "of another run" in judged(replayed, {"trtllm": path}).stderr


LINES = st.lists(st.integers(0, 11), max_size=16)


@given(kept=LINES, cut=st.integers(0, 60), parts=st.integers(1, 3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
def test_no_loss_of_lines_shows_a_polluted_control_cold_or_counts_what_did_not_land(
    logged: Any, replayed: Result, tmp_path: Path, kept: list[int], cut: int, parts: int
) -> None:
    """Lines are lost, told again, in any order, cut off at the end, and spread over files and summaries."""
    events = logged.audit(tmp_path / "all.jsonl", *logged.reused(control=64)).read_text().splitlines()
    lines = [events[number] for number in kept if number < len(events)]
    files = []
    for part in range(parts):
        text = "\n".join(lines[part::parts]) + "\n"
        files.append(tmp_path / f"{part}.jsonl")
        files[-1].write_text(text[: max(0, len(text) - cut)])
    together, apart = [summarize("semblend", files)], [summarize("semblend", [file]) for file in files]
    for summaries in (together, apart):
        evidence = BackendEvidence.of(replayed, summaries)
        control = evidence.aggregate.negative_control_backend_confirmed_rate
        assert control is None or control.value != 0 or evidence.contradictions
        assert (evidence.tokens or 0) <= 4 * 128 + 64 or evidence.contradictions
