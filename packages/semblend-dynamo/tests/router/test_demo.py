"""The demonstration writes its table, and shows what it is to show."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path


def test_the_demo_writes_its_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "semblend_dynamo.router.demo", "--output-dir", str(tmp_path / "routing")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    with (tmp_path / "routing" / "policies.csv").open() as file:
        rows = {row["policy"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["round_robin", "least_loaded", "prefix_hash", "semantic_locality"]
    assert int(rows["semantic_locality"]["on_the_documents_replica"]) == 36
    assert int(rows["round_robin"]["on_the_documents_replica"]) < 30
    assert int(rows["semantic_locality"]["cached_words"]) > int(rows["round_robin"]["cached_words"])
    assert "| semantic_locality | 36 | 36 |" in (tmp_path / "routing" / "policies.md").read_text()
