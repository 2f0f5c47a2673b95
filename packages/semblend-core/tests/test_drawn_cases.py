"""The pytest plugin sets how hypothesis draws cases: no limit of time, and the same ones in each plain run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import time
from hypothesis import given, settings, strategies as st

@settings(max_examples=5)
@given(st.integers(0, 10**9))
def test_numbers(number):
    if number:
        time.sleep(0.3)  # beyond hypothesis' own limit
    print("drew", number)
"""


def drawn(folder: Path, *options: str) -> list[str]:
    (folder / "test_numbers.py").write_text(MODULE)
    command = [sys.executable, "-m", "pytest", "-psemblend_core.testing.pytest_plugin", "-pno:cacheprovider", "-sq"]
    done = subprocess.run([*command, *options, "."], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return [line for line in done.stdout.splitlines() if "drew" in line]


def test_a_plain_run_draws_the_same_cases_each_time(tmp_path: Path) -> None:
    plain = ("-m", "not exhaustive")
    assert drawn(tmp_path, *plain) == drawn(tmp_path, *plain)


@pytest.mark.exhaustive
def test_a_whole_run_draws_new_ones(tmp_path: Path) -> None:
    assert drawn(tmp_path) != drawn(tmp_path)
