"""pytest that writes down what becomes of every test while it runs: nothing of it is lost when the process dies.

`run.py test` starts it in the environment of the tests: `python tools/recorded_pytest.py FOLDER ARGUMENTS...`. It adds
a line to FOLDER/tests.jsonl for every test that is collected, started and finished, and keeps what the running test
prints in files of FOLDER. `semblend_tools/test_record.py` reads both.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


class Recorder:
    """A plugin. Each line is written at once, so it is there however the process ends."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "tests.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._outcome = ""
        self._began = 0.0

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._write(broken=report.nodeid)

    def pytest_collection_finish(self, session: Any) -> None:
        for item in session.items:
            self._write(collected=item.nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._outcome, self._began = "passed", time.monotonic()
        self._write(started=nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        # Set-up, call and tear-down report one after the other: one failure is a failure of the test.
        if report.outcome != "passed" and self._outcome != "failed":
            self._outcome = report.outcome

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        seconds = round(time.monotonic() - self._began, 1)
        self._write(finished=nodeid, outcome=self._outcome, seconds=seconds)

    def complete(self) -> None:
        self._write(complete=True)

    def _write(self, **words: object) -> None:
        os.write(self._file, json.dumps(words).encode() + b"\n")


def keep_captured_output(folder: Path) -> None:
    """pytest captures into files without a name, which are gone with the process; give them one.

    This reaches into pytest. Should pytest change here, the last words of a test that dies are lost and nothing else.
    """
    import _pytest.capture

    numbers = iter(range(sys.maxsize))

    def named_file(*arguments: Any, **options: Any) -> Any:
        return (folder / f"captured-{next(numbers):06}").open("w+b", buffering=0)

    _pytest.capture.TemporaryFile = named_file  # type: ignore[attr-defined]


def main() -> int:
    import pytest

    folder = Path(sys.argv[1])
    keep_captured_output(folder)
    recorder = Recorder(folder)
    code = pytest.main(sys.argv[2:], plugins=[recorder])
    recorder.complete()
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
