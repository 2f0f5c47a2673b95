"""Starting child processes with the clone's environment."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from semblend_tools.clone import Clone
from semblend_tools.errors import ToolError

_LEFT_BEHIND_S = 5.0
_LOOKS, _BETWEEN_LOOKS_S = 40, 0.05
_KEPT_BYTES = 64 * 1024
_MARK = "RUN_PY_COMMAND"

_running: dict[str, tuple[float, subprocess.Popen[bytes]]] = {}
"""By their marks: when they began, and themselves."""
_broken_off = threading.Event()

# Where the commands of this thread print; None for the terminal.
_output: ContextVar[BinaryIO | None] = ContextVar("output", default=None)


@contextmanager
def printing_into(file: BinaryIO) -> Iterator[None]:
    """Commands that this thread starts print into the file: what runs side by side does not mix on the terminal."""
    token = _output.set(file)
    try:
        yield
    finally:
        _output.reset(token)


def call(
    clone: Clone,
    command: Sequence[object],
    *,
    cwd: Path | None = None,
    extra_environment: Mapping[str, str] | None = None,
) -> int:
    """Run a command with its output going straight to where we print; return its exit code."""
    sys.stdout.flush()
    environment = clone.child_environment() | dict(extra_environment or {})
    output = _output.get()
    words = [str(part) for part in command]
    return subprocess.run(
        words, cwd=cwd or clone.root, env=environment, stdout=output, stderr=output and subprocess.STDOUT
    ).returncode


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    last_lines: list[str]
    cpu_seconds: float
    """Of the command and of those of its children that it waited for."""


def call_keeping_tail(
    clone: Clone, command: Sequence[object], *, extra_environment: Mapping[str, str] | None = None, lines: int = 300
) -> Ended:
    """Run a command with its output going to where we print.

    What the command leaves running is ended: an engine whose pytest has died would take a core from all that follows.
    """
    if _broken_off.is_set():
        raise ToolError("interrupted")
    sys.stdout.flush()
    mark, began = uuid.uuid4().hex, uptime()
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=clone.root,
        env=clone.child_environment() | dict(extra_environment or {}) | {_MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    _running[mark] = began, process
    tail = _Tail(lines, _output.get() or sys.stdout.buffer)
    assert process.stdout is not None
    copying = threading.Thread(target=tail.copy, args=(process.stdout,), daemon=True)
    copying.start()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    end_leftovers(mark, began)
    del _running[mark]
    # Where they cannot be found, one may hold the command's output open for ever.
    copying.join(_LEFT_BEHIND_S)
    return Ended(process.returncode, tail.lines, used.ru_utime + used.ru_stime)


def end_what_runs() -> None:
    """Of a run that is broken off. On a terminal its commands hear of that too, and may say how far they came."""
    _broken_off.set()
    patience = time.monotonic() + _LEFT_BEHIND_S
    for mark, (began, process) in list(_running.items()):
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, patience - time.monotonic()))
        end_leftovers(mark, began)


def end_leftovers(mark: str, since: float) -> None:
    """End the processes that have the mark in their environment; only Linux shows it.

    ``since``: seconds that the machine had been up. One that was started later and shows no environment at all may be
    at its very start: it is looked at again, for a while.
    """
    wanted = f"{_MARK}={mark}".encode()
    for _ in range(_LOOKS):
        may_begin = False
        for path in Path("/proc").glob("[0-9]*/environ"):
            # A process may end meanwhile, or belong to somebody else.
            with suppress(OSError):
                environment = path.read_bytes()
                if wanted in environment.split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)
                may_begin |= not environment and _started(path.with_name("stat").read_text()) >= since
        if not may_begin:
            return
        time.sleep(_BETWEEN_LOOKS_S)


def uptime() -> float:
    """Seconds, as precise as the times of processes. Where nobody tells them, nobody asks for it."""
    ticks = os.sysconf("SC_CLK_TCK")
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * ticks) / ticks if sys.platform == "linux" else 0.0


def _started(stat: str) -> float:
    """After the name, which may hold anything, the twentieth number."""
    return int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


class _Tail:
    """Passes on what it reads, in the pieces in which it comes, and keeps the end of it."""

    def __init__(self, lines: int, onward: BinaryIO) -> None:
        self._most, self._onward, self._end = lines, onward, b""

    @property
    def lines(self) -> list[str]:
        return self._end.decode("utf-8", "replace").splitlines()[-self._most :]

    def copy(self, source: IO[bytes]) -> None:
        while piece := os.read(source.fileno(), 65536):
            self._onward.write(piece)
            self._onward.flush()
            self._end = (self._end + piece)[-_KEPT_BYTES:]


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
