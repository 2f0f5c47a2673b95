"""What became of the tests of one pytest run, as `tools/recorded_pytest.py` wrote it down."""

import json
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NO_TESTS_COLLECTED = 5  # pytest's exit code

# Selects what the plain command runs; long state machines and soaks are for `test --all`.
LEFT_OUT = "not exhaustive"


@dataclass(frozen=True)
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    not_run: int = 0

    @property
    def collected(self) -> int:
        return self.passed + self.failed + self.skipped + self.not_run

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
            self.not_run + other.not_run,
        )

    def __str__(self) -> str:
        words = [f"{self.passed} passed", f"{self.failed} failed"]
        words += [f"{self.skipped} skipped"] if self.skipped else []
        words += [f"{self.not_run} not run"] if self.not_run else []
        return ", ".join(words)


@dataclass
class RunRecord:
    """Tests by their pytest ids, in the order of the run."""

    collected: list[str] = field(default_factory=list)
    outcomes: dict[str, str] = field(default_factory=dict)
    """Of those that finished."""
    seconds: dict[str, float] = field(default_factory=dict)
    """The same, with what they set up for others."""
    broken: list[str] = field(default_factory=list)
    """Files that could not be collected."""
    running: str | None = None
    """The test that was running when pytest died."""
    complete: bool = False
    """Whether pytest came to its end."""
    captured: str = ""
    """What the running test had printed."""

    @property
    def not_run(self) -> list[str]:
        return [test for test in self.collected if test not in self.outcomes and test != self.running]

    @property
    def failed(self) -> list[str]:
        """Tests, and files that could not be collected. Not one that took pytest along."""
        return [*self.broken, *(test for test, outcome in self.outcomes.items() if outcome == "failed")]

    @property
    def counts(self) -> Counts:
        """A test that took pytest along has failed; so has a file that could not be collected."""
        found = Counter(self.outcomes.values())
        failed = len(self.failed) + (self.running is not None)
        return Counts(found["passed"], failed, found["skipped"], len(self.not_run))


def read_record(folder: Path) -> RunRecord:
    record = RunRecord()
    for line in _lines(folder / "tests.jsonl"):
        match line:
            case {"collected": test}:
                record.collected.append(test)
            case {"broken": file}:
                record.broken.append(file)
            case {"started": test}:
                record.running = test
            case {"finished": test, "outcome": outcome, "seconds": seconds}:
                record.outcomes[test], record.seconds[test], record.running = outcome, seconds, None
            case {"complete": True}:
                record.complete = True
    if record.running is not None:
        record.captured = "".join(path.read_text("utf-8", "replace") for path in sorted(folder.glob("captured-*")))
    return record


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            yield json.loads(line)
        except ValueError:  # a machine without room on its disk tears the last line
            return


@dataclass(frozen=True)
class Death:
    """A pytest that did not come to its end."""

    who: str
    code: int
    record: RunRecord
    terminal: Sequence[str]
    """The last lines that it printed."""

    def __str__(self) -> str:
        lines = [f"{self.who} died: {how_it_ended(self.code)}, {self._when()}"]
        lines += _quoted("its last lines", self.terminal)
        lines += _quoted("what the test had printed", self.record.captured.splitlines())
        if self.record.not_run:
            lines.append(f"  {len(self.record.not_run)} of {len(self.record.collected)} tests did not run:")
            lines += [f"    {line}" for line in _by_file(self.record)]
        return "\n".join(lines)

    def _when(self) -> str:
        if self.record.running:
            return f"while it ran {self.record.running}"
        if not self.record.collected:
            return "before it had collected its tests"
        return "between two tests" if self.record.not_run else "after its last test"


_LINES = 30
_WIDTH = 240


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"it was killed by {name}{' (was the memory full?)' if name == 'SIGKILL' else ''}"


def _quoted(heading: str, lines: Sequence[str]) -> list[str]:
    """The end of what was printed, without pytest's own part of a stack."""
    told = [line[:_WIDTH] for line in lines if "/_pytest/" not in line and "/pluggy/" not in line]
    return [f"  {heading}:", *(f"    | {line}" for line in told[-_LINES:])] if told else []


def _by_file(record: RunRecord) -> Iterator[str]:
    """The file's name where all of its tests are missing, and the tests' where some are."""
    of_file = Counter(test.partition("::")[0] for test in record.collected)
    missing: dict[str, list[str]] = {}
    for test in record.not_run:
        missing.setdefault(test.partition("::")[0], []).append(test)
    for file, tests in missing.items():
        if len(tests) == of_file[file]:
            yield f"{file}: all {len(tests)}"
        else:
            yield from tests
