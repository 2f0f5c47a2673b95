"""Programs of tests: alone, and in forks of one process that has imported what they need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semblend_core.testing import run_program

PROGRAM = """
import os, sys
from beside import WORD
from semblend_core.testing import write_findings

def main(*arguments):
    assert arguments != ("fail",), "as it was asked to"
    print("in the log")
    return {"arguments": arguments, "word": WORD, "colour": os.environ.get("COLOUR"), "parent": os.getppid(),
            "imported": "colorsys" in sys.modules, "name": __name__}

if __name__ == "__main__":
    write_findings(main)
"""
IMPORTED = ("colorsys",)
"""Something that nobody else imports."""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("WORD = 'found'")
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


@pytest.mark.parametrize("imported", [(), IMPORTED])
def test_what_a_program_finds_comes_back(program: Path, imported: tuple[str, ...]) -> None:
    found = run_program(program, program.parent, "one", "{two}", imported=imported, COLOUR="green")
    assert found["arguments"] == ["one", "{two}"]
    assert (found["word"], found["colour"], found["name"]) == ("found", "green", "__main__")
    assert found["imported"] == bool(imported)
    assert "in the log" in program.with_suffix(".log").read_text()


@pytest.mark.parametrize("imported", [(), IMPORTED])
def test_one_that_fails_says_why(program: Path, imported: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError, match="as it was asked to"):
        run_program(program, program.parent, "fail", imported=imported)


def test_programs_share_one_process_and_nothing_else(program: Path, monkeypatch: Any) -> None:
    first = run_program(program, program.parent, imported=IMPORTED, COLOUR="green")
    monkeypatch.setenv("COLOUR", "blue")
    second = run_program(program, program.parent, imported=IMPORTED)
    monkeypatch.delenv("COLOUR")
    third = run_program(program, program.parent, imported=IMPORTED)
    assert first["parent"] == second["parent"] == third["parent"]
    assert [each["colour"] for each in (first, second, third)] == ["green", "blue", None]
