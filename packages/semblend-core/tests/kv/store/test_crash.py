"""A killed writer leaves whole donors or none. Real processes, real SIGKILL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "store_crash.py"


@pytest.mark.skipif(not SCRIPT.exists() or not hasattr(os, "fork"), reason="needs the benchmarks and fork")
def test_what_a_killed_process_called_durable_is_there_and_whole(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--kills", "10", "--folder", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.stdout, run.stderr
    report = json.loads(run.stdout)
    assert report["kills"] == 10, report
    assert report["acknowledged"] > 0, "nothing was put to the test"
    assert report["found_again"] == report["acknowledged"], report
    assert (report["missing"], report["corrupt_served"], report["failed_loads"]) == (0, 0, {}), report
    assert run.returncode == 0
