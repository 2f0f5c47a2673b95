"""Starting child processes with the clone's environment."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from semblend_tools.clone import Clone
from semblend_tools.errors import ToolError


def call(
    clone: Clone,
    command: Sequence[object],
    *,
    cwd: Path | None = None,
    extra_environment: Mapping[str, str] | None = None,
) -> int:
    """Run a command with its output going straight to the terminal; return its exit code."""
    sys.stdout.flush()
    environment = clone.child_environment() | dict(extra_environment or {})
    return subprocess.run([str(part) for part in command], cwd=cwd or clone.root, env=environment).returncode


def call_or_fail(
    clone: Clone,
    command: Sequence[object],
    failure: str,
    *,
    cwd: Path | None = None,
    extra_environment: Mapping[str, str] | None = None,
) -> None:
    code = call(clone, command, cwd=cwd, extra_environment=extra_environment)
    if code:
        raise ToolError(f"{failure} (exit code {code}; its output is above)", code)


def answer_of(clone: Clone, command: Sequence[object]) -> tuple[int, str]:
    """Run a command; return its exit code and what it printed, which stays off the terminal."""
    done = _captured(clone, command, clone.root)
    return done.returncode, done.stdout


def output_of(clone: Clone, command: Sequence[object], *, cwd: Path | None = None) -> str:
    """Run a command that must succeed and return what it printed."""
    done = _captured(clone, command, cwd or clone.root)
    if done.returncode:
        words = " ".join(str(part) for part in command)
        raise ToolError(f"`{words}` failed with exit code {done.returncode}:\n{done.stderr.strip()}", done.returncode)
    return done.stdout


def _captured(clone: Clone, command: Sequence[object], cwd: Path) -> subprocess.CompletedProcess[str]:
    words = [str(part) for part in command]
    return subprocess.run(words, cwd=cwd, env=clone.child_environment(), capture_output=True, text=True)
