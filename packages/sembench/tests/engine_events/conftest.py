from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sembench.cli import main


@pytest.fixture
def log(tmp_path: Path) -> Callable[..., Path]:
    """Writes lines to a file and gives its path."""

    def write(*lines: str, name: str = "engine.log") -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return write


@pytest.fixture
def sembench() -> Callable[..., Result]:
    """Runs a command as a shell would; stdout and stderr are apart."""

    def run(*arguments: str | Path) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="sembench")

    return run


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts an executable named kubectl, with the given shell body, first on PATH; its arguments are kept."""

    def install(body: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        program, arguments = folder / "kubectl", tmp_path / "kubectl-arguments"
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {arguments}\n{body}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        return arguments

    return install
