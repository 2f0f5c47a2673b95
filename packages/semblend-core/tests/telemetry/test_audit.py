"""The audit log in good health: nothing lost, nothing torn, bounded on disk."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from semblend_core import Plan, Span
from semblend_core.settings import Settings
from semblend_core.telemetry import (
    AuditLog,
    DonorRegistered,
    ErrorSeen,
    LoadAdvertised,
    Materialized,
    NoAudit,
    PlanMade,
    iter_audit,
    open_audit,
    read_audit,
)
from semblend_core.telemetry.reader import TornLine, audit_files

LONG = 60.0
"""Seconds that no healthy run needs: a test that hangs fails instead."""


def event(number: int, thread: int = 0) -> LoadAdvertised:
    return LoadAdvertised(request_id=f"{thread}-{number}", tokens=number)


def test_what_is_emitted_is_on_file_after_flush(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", "vllm")
    before = time.time()
    log.emit(Materialized(request_id="r1", tokens=256, layers=28, bytes=4096))
    assert log.flush(LONG)
    (record,) = read_audit(log.path).records
    assert record["schema"] == "semblend.audit.v1"
    assert (record["event"], record["engine"], record["request_id"]) == ("materialized", "vllm", "r1")
    assert (record["tokens"], record["layers"], record["bytes"], record["microseconds"]) == (
        256,
        28,
        4096,
        None,
    )
    assert before <= record["time"] <= time.time()
    assert log.close(LONG)


def test_close_writes_what_is_queued_and_later_events_are_dropped_and_counted(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", "vllm")
    for number in range(1000):
        log.emit(event(number))
    assert log.close(LONG)
    assert log.close(LONG), "closing twice is harmless"
    log.emit(event(1000))
    assert log.flush(LONG)
    assert len(read_audit(log.path).records) == 1000
    counters = log.counters()
    assert (counters.written, counters.dropped_closed, counters.queued) == (1000, 1, 0)


def test_eight_threads_lose_and_tear_nothing(tmp_path: Path) -> None:
    threads, each = 8, 2000
    log = AuditLog(tmp_path / "audit.jsonl", "vllm", queue_size=threads * each, max_bytes=200_000, backups=100)
    start = threading.Barrier(threads)

    def work(thread: int) -> None:
        start.wait()
        for number in range(each):
            log.emit(event(number, thread))

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert log.close(LONG)

    reading = read_audit(log.path)
    assert reading.torn == ()
    assert len(audit_files(log.path)) > 1, "the run was meant to rotate"
    for thread in range(threads):
        own = [r["tokens"] for r in reading.records if r["request_id"].startswith(f"{thread}-")]
        assert own == list(range(each)), "one thread's events keep their order"
    assert log.counters().written == threads * each
    assert log.counters().dropped == 0


def test_rotation_bounds_every_file_and_their_number(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", "vllm", max_bytes=2000, backups=2)
    for number in range(300):
        log.emit(event(number))
    assert log.close(LONG)
    files = audit_files(log.path)
    assert [file.name for file in files] == ["audit.jsonl.2", "audit.jsonl.1", "audit.jsonl"]
    assert sorted(os.listdir(tmp_path)) == sorted(file.name for file in files)
    assert all(file.stat().st_size <= 2000 for file in files)
    numbers = [record["tokens"] for record in read_audit(log.path).records]
    assert numbers == list(range(numbers[0], 300)), "what is left is the newest, without a hole"


def test_without_backups_rotation_starts_over(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", "vllm", max_bytes=1000, backups=0)
    for number in range(100):
        log.emit(event(number))
    assert log.close(LONG)
    assert os.listdir(tmp_path) == ["audit.jsonl"]
    assert read_audit(log.path).records[-1]["tokens"] == 99


def test_a_record_larger_than_a_file_gets_a_file_of_its_own(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", "vllm", max_bytes=1000, backups=5)
    for where in ("a", "b" * 5000, "c"):
        log.emit(ErrorSeen(request_id="r", where=where))
    assert log.close(LONG)
    assert [len(read_audit(file, backups=False).records) for file in audit_files(log.path)] == [1, 1, 1]


def test_a_stream_behind_a_link_rotates_beside_its_target(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "audit.jsonl"
    link.symlink_to(tmp_path / "disk" / "real.jsonl")
    log = AuditLog(link, "vllm", max_bytes=1000, backups=100)
    for number in range(50):
        log.emit(event(number))
    assert log.close(LONG)
    assert link.is_symlink()
    assert [record["tokens"] for record in read_audit(link).records] == list(range(50))


def test_a_second_run_appends(tmp_path: Path) -> None:
    for number in range(2):
        log = AuditLog(tmp_path / "audit.jsonl", "vllm")
        log.emit(event(number))
        assert log.close(LONG)
    assert [record["tokens"] for record in read_audit(log.path).records] == [0, 1]


def test_the_path_can_name_the_process(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit-{pid}.jsonl", "vllm")
    log.emit(event(1))
    assert log.close(LONG)
    assert os.listdir(tmp_path) == [f"audit-{os.getpid()}.jsonl"]


def test_numbers_from_numpy_are_numbers(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", "vllm")
    log.emit(Materialized(request_id="r", tokens=np.int64(7), microseconds=np.float32(1.5)))  # type: ignore[arg-type]
    assert log.close(LONG)
    (record,) = read_audit(log.path).records
    assert (record["tokens"], record["microseconds"]) == (7, 1.5)


def test_text_of_any_kind_stays_one_line(tmp_path: Path) -> None:
    odd = 'a\nb\r\u2028"\\\ud800'
    log = AuditLog(tmp_path / "audit.jsonl", "vllm")
    log.emit(DonorRegistered(request_id=odd, donor_id=odd))
    assert log.close(LONG)
    reading = read_audit(log.path)
    assert (len(reading.records), reading.torn) == (1, ())
    assert reading.records[0]["request_id"] == odd


def test_donors_have_names_that_only_the_writer_could_have_made(tmp_path: Path) -> None:
    plan = Plan.over("r", 400, 16, [Span(32, "donor", 0, 128)])
    names = []
    for number in range(2):
        log = AuditLog(tmp_path / f"audit-{number}.jsonl", "vllm")
        log.emit(DonorRegistered(request_id=None, donor_id="donor"))
        log.emit(PlanMade.of(plan, materialize=True))
        log.emit(DonorRegistered(request_id=None, donor_id="another"))
        assert log.close(LONG)
        registered, made, other = read_audit(log.path).records
        assert made["donors"] == [registered["donor_id"]], "one donor has one name"
        assert other["donor_id"] != registered["donor_id"]
        assert b'"donor"' not in Path(log.path).read_bytes()
        names.append(registered["donor_id"])
    assert names[0] != names[1], "another process has another key"


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", "vllm", max_bytes=1000, backups=2)
    for number in range(30):
        log.emit(event(number))
    assert log.close(LONG)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_a_value_that_json_cannot_express_costs_that_record_alone(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", "vllm")
    log.emit(DonorRegistered(request_id="r", donor_id=object()))  # type: ignore[arg-type]
    log.emit("not an event")  # type: ignore[arg-type]
    log.emit(event(1))
    assert log.close(LONG)
    assert len(read_audit(log.path).records) == 1
    assert log.counters().dropped_unencodable == 2


def test_settings_decide_whether_there_is_a_stream(tmp_path: Path) -> None:
    nothing = open_audit(Settings(), "vllm")
    nothing.emit(event(1))
    assert isinstance(nothing, NoAudit)
    assert nothing.flush()
    assert nothing.close()
    assert nothing.counters().dropped == 0

    log = open_audit(Settings(audit_path=str(tmp_path / "a.jsonl"), audit_max_bytes=4096, audit_backups=1), "vllm")
    for number in range(200):
        log.emit(event(number))
    assert log.close(LONG)
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "a.jsonl.1"]


def test_a_reader_reports_torn_lines_by_file_and_line(tmp_path: Path) -> None:
    good = json.dumps({"schema": "semblend.audit.v1", "event": "plan"})
    newest, older = tmp_path / "a.jsonl", tmp_path / "a.jsonl.1"
    older.write_text(f'{good}\n{{"schema":"semblend.au\n{good}\n')
    newest.write_bytes(b'[1]\n\n{"schema":"other.v9"}\n' + good.encode() + b'\n\xff\xfe{"sch')
    reading = read_audit(newest)
    assert len(reading.records) == 3
    assert [(torn.file, torn.line) for torn in reading.torn] == [
        (older, 2),
        (newest, 1),
        (newest, 3),
        (newest, 5),
    ]
    assert "other.v9" in reading.torn[2].problem
    assert str(reading.torn[0]).startswith(f"{older}:2: ")
    assert [isinstance(each, TornLine) for each in iter_audit(newest, backups=False)] == [
        True,
        True,
        False,
        True,
    ]


def test_a_reader_says_when_there_is_no_stream(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="neither the file nor a backup"):
        read_audit(tmp_path / "none.jsonl")


WRITES_BOTH = """
import sys
from semblend_core.telemetry import AuditLog, LoadAdvertised

log = AuditLog("/dev/STREAM", "vllm", max_bytes=4096, backups=1)
for number in range(200):
    print("INFO a line of the engine's own", number, file=sys.STREAM, flush=True)
    log.emit(LoadAdvertised(request_id=f"r{number}", tokens=number))
    log.flush()
assert log.counters().written == 200, log.counters()
"""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("into", ["a file", "a pipe", "a socket"])
def test_records_are_written_between_the_lines_of_the_processs_own_stream(
    tmp_path: Path, stream: Literal["stdout", "stderr"], into: str
) -> None:
    """Nothing is overwritten, torn or rotated away, whatever the stream leads to."""
    words = [sys.executable, "-c", WRITES_BOTH.replace("STREAM", stream)]
    path = tmp_path / "engine.log"
    if into == "a file":
        with path.open("wb") as output:
            subprocess.run(words, check=True, **{stream: output})
    elif into == "a pipe":
        path.write_bytes(getattr(subprocess.run(words, check=True, **{stream: subprocess.PIPE}), stream))
    else:
        path.write_bytes(_through_a_socket(words, stream))
    lines = path.read_text().splitlines()
    told = [json.loads(line)["tokens"] for line in lines if line.startswith("{")]
    assert told == list(range(200))
    assert len(lines) == 400
    assert os.listdir(tmp_path) == ["engine.log"]


def _through_a_socket(words: list[str], stream: str) -> bytes:
    here, there = socket.socketpair()
    with here, there, subprocess.Popen(words, **{stream: there}) as process:
        there.close()
        received = b"".join(iter(lambda: here.recv(65536), b""))
        assert process.wait() == 0
    return received
