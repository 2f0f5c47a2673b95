"""Jobs that run side by side while the environments they need are being made."""

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from semblend_tools import environments
from semblend_tools.environments import Environment
from semblend_tools.errors import ToolError
from semblend_tools.processes import printing_into
from semblend_tools.progress import say, saying_into

R = TypeVar("R")

_PROGRESS_S = 60.0
_SUMMARY, _RULE = b"short test summary info", b"====="
"""Where pytest says of a run that went well what it left out, and why; what its last line begins with."""


@dataclass(frozen=True)
class Job(Generic[R]):
    name: str
    needs: tuple[Environment, ...]
    run: Callable[[], R]
    without_environment: Callable[[ToolError], R]
    """The result where an environment could not be made."""
    progress: Callable[[], str] = str
    """A few words while it runs."""
    went_well: Callable[[R], bool] = lambda result: False
    """Then the end of what it printed is enough."""


def run_side_by_side(jobs: Sequence[Job[R]], lanes: int) -> list[R]:
    """The jobs' results, in their order. Each prints when it has ended, in one piece, and a line tells how far all are.

    Environments are made one after the other, those that packages share first. Each lane takes the next job that has
    its environment, those with an engine first: they take longest.
    """
    with tempfile.TemporaryDirectory() as folder:
        return _Run(jobs, Path(folder)).results(lanes)


class _Run(Generic[R]):
    def __init__(self, jobs: Sequence[Job[R]], folder: Path) -> None:
        self._jobs = jobs
        self._folder = folder
        self._made: dict[Environment, ToolError | None] = {}
        self._waiting = list(jobs)
        self._running: list[Job[R]] = []
        self._results: dict[int, R] = {}
        self._fault: BaseException | None = None
        self._changed = threading.Condition()

    def results(self, lanes: int) -> list[R]:
        for target in [self._make_environments, *[self._lane] * lanes]:
            # Daemons: an interrupted run does not wait for them.
            threading.Thread(target=self._guarded, args=(target,), daemon=True).start()
        started = told = time.monotonic()
        with self._changed:
            while len(self._results) < len(self._jobs) and self._fault is None:
                self._changed.wait(1.0)
                if time.monotonic() - told > _PROGRESS_S:
                    told = time.monotonic()
                    self._tell(told - started)
        if self._fault is not None:
            raise self._fault
        return [self._results[id(job)] for job in self._jobs]

    def _guarded(self, target: Callable[[], None]) -> None:
        """A fault of ours must not leave the run waiting."""
        try:
            target()
        except BaseException as fault:
            with self._changed:
                self._fault = self._fault or fault
                self._changed.notify_all()

    def _make_environments(self) -> None:
        needed = dict.fromkeys(needed for job in self._jobs for needed in job.needs)
        for environment in sorted(needed, key=lambda each: not each.is_shared):
            failure = None
            with self._own_output(environment.label) as log:
                try:
                    environments.ensure(environment)
                except ToolError as error:
                    failure = error
                    _show(f"making the environment `{environment.label}`", log)
            with self._changed:
                self._made[environment] = failure
                self._changed.notify_all()

    def _lane(self) -> None:
        while job := self._next_job():
            with self._own_output(job.name) as log, log.open("ab") as words, saying_into(words):
                failures = [failure for needed in job.needs if (failure := self._made[needed])]
                result = job.without_environment(failures[0]) if failures else job.run()
            with self._changed:
                _show(job.name, log, only_end=job.went_well(result))
                self._running.remove(job)
                self._results[id(job)] = result
                self._changed.notify_all()

    def _next_job(self) -> Job[R] | None:
        with self._changed:
            while self._waiting:
                ready = [job for job in self._waiting if all(needed in self._made for needed in job.needs)]
                if job := next(iter(sorted(ready, key=_is_shared)), None):
                    self._waiting.remove(job)
                    self._running.append(job)
                    say(f"{job.name} ...")
                    return job
                self._changed.wait()
        return None

    @contextmanager
    def _own_output(self, name: str) -> Iterator[Path]:
        path = Path(tempfile.mkstemp(prefix=name.replace("/", "-")[:40], dir=self._folder)[1])
        with path.open("ab") as file, printing_into(file):
            yield path

    def _tell(self, seconds: float) -> None:
        words = [f"{job.name} {job.progress()}".rstrip() for job in self._running]
        waiting = f"; {len(self._waiting)} to come" if self._waiting else ""
        say(f"  {seconds:.0f} s: {', '.join(words) or 'waiting for environments'}{waiting}")


def _is_shared(job: Job[R]) -> bool:
    return all(needed.is_shared for needed in job.needs)


def _show(name: str, log: Path, *, only_end: bool = False) -> None:
    """What it printed, all at once."""
    print(f"\n[run] ---- {name} ----", flush=True)
    printed = log.read_bytes()
    if only_end:
        lines = printed.splitlines(keepends=True)
        # Something may have been said behind pytest's last line, by processes that it left to end.
        ends = [at for at, line in enumerate(lines) if _SUMMARY in line] or [
            at for at, line in enumerate(lines) if _RULE in line
        ]
        printed = b"".join(lines[ends[-1] if ends else -1 :])
    sys.stdout.buffer.write(printed)
    sys.stdout.flush()
