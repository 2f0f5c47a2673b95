"""The bandwidth benchmark needs a GPU to measure; what it is told wrongly it says without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "store_bandwidth.py"


@pytest.mark.skipif(not SCRIPT.exists(), reason="needs the benchmarks")
def test_a_folder_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--folder", str(tmp_path / "not mounted")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 2
    assert "not mounted" in run.stderr
    assert "is not a folder" in run.stderr
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "not mounted").exists()
