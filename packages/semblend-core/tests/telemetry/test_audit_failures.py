"""The audit log when the disk is full or hangs and when the path is wrong. Real disks, real limits."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from semblend_core.telemetry import AuditLog, LoadAdvertised, read_audit
from semblend_core.telemetry.audit_counters import AuditCounters

LONG = 60.0
"""Seconds that no healthy run needs: a test that hangs fails instead."""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX files and signals")


def event(number: int) -> LoadAdvertised:
    return LoadAdvertised(request_id=f"r{number}", tokens=number)


def emit(log: AuditLog, numbers: range) -> AuditCounters:
    for number in numbers:
        log.emit(event(number))
    assert log.flush(LONG)
    return log.counters()


def run_python(code: str, *arguments: str, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*launcher, sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_full_device_costs_records_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    log = AuditLog("/dev/full", "vllm")
    with caplog.at_level(logging.WARNING, logger="semblend_core.telemetry"):
        for number in range(5):
            emit(log, range(number, number + 1))
    counters = log.counters()
    assert (counters.written, counters.dropped_io_error) == (0, 5)
    (warning,) = caplog.records
    assert "No space left on device" in warning.getMessage()
    assert "/dev/full" in warning.getMessage()
    assert log.close(LONG)


FULL_THEN_FREE = """
    import json, resource, sys
    from semblend_core.telemetry import AuditLog, LoadAdvertised

    def emit(log, numbers):
        for number in numbers:
            log.emit(LoadAdvertised(request_id=f"r{number}", tokens=number))
        assert log.flush(60)
        return log.counters()

    log = AuditLog(sys.argv[1], "vllm")
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_001, hard))
    full = emit(log, range(500))
    still = emit(log, range(500, 510))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    free = emit(log, range(1000, 1100))
    assert log.close(60)
    print(json.dumps([[c.written, c.dropped_io_error] for c in (full, still, free)]))
"""


def test_a_file_that_may_not_grow_stops_whole_and_goes_on_when_it_may(tmp_path: Path) -> None:
    """The kernel's file size limit cuts a write short and then refuses, just as a disk that fills up does."""
    path = tmp_path / "audit.jsonl"
    ran = run_python(FULL_THEN_FREE, str(path))
    assert ran.returncode == 0, ran.stderr
    (full, lost), (still, lost_more), (free, lost_in_all) = json.loads(ran.stdout)
    assert 0 < full < 500
    assert full + lost == 500
    assert still + lost_more == 510
    assert lost_more > lost
    assert (free - still, lost_in_all) == (100, lost_more), "nothing is lost once there is room"
    reading = read_audit(path)
    assert reading.torn == ()
    numbers = [record["tokens"] for record in reading.records]
    assert len(numbers) == free
    assert numbers == sorted(numbers)
    assert numbers[-100:] == list(range(1000, 1100))
    assert "File too large" in ran.stderr
    assert "is written again" in ran.stderr


FULL_TMPFS = """
    import json, os, subprocess, sys
    from semblend_core.telemetry import AuditLog, LoadAdvertised

    mount = sys.argv[1]
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "semblend-test", mount])
    if done.returncode:
        sys.exit(77)

    def emit(log, numbers):
        for number in numbers:
            log.emit(LoadAdvertised(request_id=f"r{number}", tokens=number))
        assert log.flush(60)
        return log.counters()

    log = AuditLog(f"{mount}/audit.jsonl", "vllm", queue_size=100_000)
    first = emit(log, range(10))
    with open(f"{mount}/ballast", "wb", buffering=0) as ballast:
        try:
            while ballast.write(b"x" * 4096):
                pass
        except OSError as error:
            assert error.strerror == "No space left on device", error
    full = emit(log, range(10, 1000))
    os.unlink(f"{mount}/ballast")
    free = emit(log, range(1000, 1100))
    assert log.close(60)
    sys.stdout.write(json.dumps([[c.written, c.dropped_io_error] for c in (first, full, free)]) + "\\n")
    sys.stdout.write(open(f"{mount}/audit.jsonl").read())
"""


def test_a_file_system_that_fills_up_and_is_freed(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        pytest.skip("needs unshare and mount")
    mount = tmp_path / "mount"
    mount.mkdir()
    # A mount namespace of its own: the mount is gone with the process, whatever happens.
    launcher = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--mount", "--map-root-user")
    ran = run_python(FULL_TMPFS, str(mount), launcher=launcher)
    if ran.returncode == 77 or "unshare:" in ran.stderr:
        pytest.skip("may not mount here")
    assert ran.returncode == 0, ran.stderr
    head, _, content = ran.stdout.partition("\n")
    (first, none_lost), (full, lost), (free, lost_in_all) = json.loads(head)
    assert (first, none_lost) == (10, 0)
    assert full + lost == 1000
    assert lost > 0
    assert (free - full, lost_in_all) == (100, lost)
    (tmp_path / "copy.jsonl").write_text(content)
    reading = read_audit(tmp_path / "copy.jsonl")
    assert (len(reading.records), reading.torn) == (free, ())


def test_a_directory_that_is_missing_removed_and_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "logs"
    log = AuditLog(folder / "audit.jsonl", "vllm")
    with caplog.at_level(logging.WARNING, logger="semblend_core.telemetry"):
        assert emit(log, range(3)).dropped_io_error == 3
        assert "No such file or directory" in caplog.text
        folder.mkdir()
        assert emit(log, range(3, 5)).written == 2
        shutil.rmtree(folder)
        assert emit(log, range(5, 6)).dropped_io_error == 4, "a removed file swallows no records"
        folder.mkdir()
        assert emit(log, range(6, 8)).written == 4
    assert [record["tokens"] for record in read_audit(log.path).records] == [6, 7]
    assert log.close(LONG)


def test_a_path_that_is_a_directory_costs_records_and_nothing_else(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, "vllm")
    assert emit(log, range(2)).dropped_io_error == 2
    assert log.close(LONG)


def test_a_file_moved_away_by_a_log_rotator_is_followed_by_a_new_one(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", "vllm")
    emit(log, range(2))
    os.rename(log.path, tmp_path / "elsewhere.jsonl")
    emit(log, range(2, 4))
    assert log.close(LONG)
    assert [record["tokens"] for record in read_audit(log.path).records] == [2, 3]
    assert [record["tokens"] for record in read_audit(tmp_path / "elsewhere.jsonl").records] == [0, 1]


def test_a_torn_line_of_an_earlier_run_is_ended_before_the_first_new_one(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"schema":"semblend.audit.v1","event":"pl')
    log = AuditLog(path, "vllm")
    emit(log, range(2))
    assert log.close(LONG)
    reading = read_audit(path)
    assert [record["tokens"] for record in reading.records] == [0, 1]
    assert [(torn.file, torn.line) for torn in reading.torn] == [(path, 1)]


def test_a_second_writer_of_the_same_file_is_kept_out_and_told_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = AuditLog(tmp_path / "audit.jsonl", "vllm")
    emit(first, range(1))
    second = AuditLog(tmp_path / "audit.jsonl", "vllm")
    with caplog.at_level(logging.WARNING, logger="semblend_core.telemetry"):
        assert emit(second, range(1, 2)).dropped_io_error == 1
    assert "put {pid} into SEMBLEND_AUDIT_PATH" in caplog.text
    assert first.close(LONG)
    assert emit(second, range(2, 3)).written == 1, "the file is free once its writer is gone"
    assert second.close(LONG)
    assert [record["tokens"] for record in read_audit(first.path).records] == [0, 2]


def fill(pipe: Path) -> None:
    """Put empty lines into ``pipe`` until it takes no more."""
    writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, b"\n" * 4096):
            pass
    os.close(writer)


def drain(descriptor: int) -> bytes:
    """All that is in the pipe now."""
    received = b""
    while select.select([descriptor], [], [], 0.2)[0] and (part := os.read(descriptor, 1 << 16)):
        received += part
    return received


def test_a_disk_that_hangs_fills_the_queue_and_holds_up_nobody(tmp_path: Path) -> None:
    """A pipe that nobody reads blocks its writer for good, as a hung network disk does."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    fill(pipe)
    try:
        log = AuditLog(pipe, "vllm", queue_size=100)
        emitted = 0
        while log.counters().dropped_queue_full < 50:
            log.emit(event(emitted))
            emitted += 1
        assert log.flush(0.01) is False
        assert log.close(0.01) is False
        stuck = log.counters()
        assert (stuck.written, stuck.queued, stuck.dropped_queue_full) == (0, 100, emitted - 100)
        received = b""
        while not log.close(0.01):
            received += drain(reader)
        received += drain(reader)
        settled = log.counters()
        assert (settled.queued, settled.written + settled.dropped) == (0, emitted)
        assert len([json.loads(line) for line in received.split(b"\n") if line]) == settled.written
    finally:
        os.close(reader)
