"""The audit log when its process is killed, ends or forks. Real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from semblend_core.telemetry import AuditLog, LoadAdvertised, read_audit

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals and fork")


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


ENDLESS = """
    import itertools, sys
    from semblend_core.telemetry import AuditLog, LoadAdvertised

    log = AuditLog(sys.argv[1], "vllm", queue_size=100_000)
    for number in itertools.count():
        log.emit(LoadAdvertised(request_id=f"r{number}", tokens=number))
        if number % 1000 == 999:
            log.flush(60)
            print(number, flush=True)
"""


def test_a_killed_process_leaves_at_most_one_torn_line_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    command = [sys.executable, "-c", textwrap.dedent(ENDLESS), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        flushed = [int(process.stdout.readline()) for _ in range(5)][-1]
        process.send_signal(signal.SIGKILL)
    reading = read_audit(path)
    numbers = [record["tokens"] for record in reading.records]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > flushed, "what was flushed survives the process"
    assert len(reading.torn) <= 1
    assert all(torn.line == len(numbers) + 1 for torn in reading.torn)

    log = AuditLog(path, "vllm")
    log.emit(LoadAdvertised(request_id="next run"))
    assert log.close(60)
    assert read_audit(path).records[-1]["request_id"] == "next run", "the next run writes on behind it"


def test_a_process_that_just_ends_still_writes_what_is_queued(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    code = """
        import sys
        from semblend_core.telemetry import AuditLog, LoadAdvertised
        log = AuditLog(sys.argv[1], "vllm")
        for number in range(1000):
            log.emit(LoadAdvertised(request_id="r", tokens=number))
    """
    assert run_python(code, str(path)).returncode == 0
    assert len(read_audit(path).records) == 1000


FORK = """
    import os, sys
    from semblend_core.telemetry import AuditLog, LoadAdvertised

    def event(number):
        return LoadAdvertised(request_id="r", tokens=number)

    log = AuditLog(sys.argv[1], "vllm")
    log.emit(event(0))
    assert log.flush(60)
    child = os.fork()
    if child == 0:
        log.emit(event(1))
        assert log.flush(60) and log.close(60)
        own = AuditLog(sys.argv[1] + ".child", "vllm")
        own.emit(event(2))
        os._exit(0 if log.counters().dropped_closed == 1 and own.close(60) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    log.emit(event(3))
    assert log.close(60)
    assert log.counters().written == 2
"""


def test_a_forked_child_drops_and_counts_and_may_open_its_own(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    ran = run_python(FORK, str(path))
    assert ran.returncode == 0, ran.stderr
    assert [record["tokens"] for record in read_audit(path).records] == [0, 3]
    assert [record["tokens"] for record in read_audit(f"{path}.child").records] == [2]
