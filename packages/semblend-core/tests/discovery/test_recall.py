"""Prompts full of repeats and near-copies, from donors full of them: what brute force finds, the lookup finds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "recall.py"


@pytest.mark.skipif(not SCRIPT.exists(), reason="needs the benchmarks")
def test_of_what_brute_force_finds_in_near_copies_next_to_nothing_is_missed(tmp_path: Path) -> None:
    for number, source in enumerate((json, subprocess, pytest)):
        # The same text on every machine is not needed, real text is: it repeats itself in its own ways.
        text = "\n".join(file.read_text() for file in sorted(Path(str(source.__file__)).parent.glob("*.py"))[:40])
        (tmp_path / f"{number}.txt").write_text(text)
    command = [sys.executable, str(SCRIPT), "--words", "--prompts", "25", "--data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["prompts"] == 25
    assert figures["recall_worst"] >= 0.98, done.stdout
