"""`run.py test`: one pytest run per package and environment, then a table of what happened."""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from semblend_tools.clone import Clone
from semblend_tools.engines import OWN, environment_owner, releases_of
from semblend_tools.environments import Environment, engine_of, shared
from semblend_tools.errors import ToolError
from semblend_tools.lint_command import lint
from semblend_tools.packages import Package, discover, select
from semblend_tools.progress import complain, say
from semblend_tools.side_by_side import Job, run_side_by_side
from semblend_tools.system_packages import provide
from semblend_tools.tables import print_table
from semblend_tools.test_record import LEFT_OUT, NO_TESTS_COLLECTED, Counts, Death, read_record

TOOLS = "tools"

# A script of its own, because the tests' environments do not hold this tooling.
RECORDED_PYTEST = Path(__file__).resolve().parents[1] / "recorded_pytest.py"


@dataclass(frozen=True)
class Choice:
    """What the command line asks for."""

    names: tuple[str, ...] = ()
    engines: bool = True
    everything: bool = False
    """Older releases of the engines, and the tests that are marked `exhaustive`."""
    release: str | None = None
    """Only the engine tests, in this release of the engine."""
    lanes: int = 1
    pytest: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suite:
    """One pytest run."""

    name: str
    environment: Environment
    tests: tuple[Path, ...]
    ignored: Path | None = None
    system_packages: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"testing {self.name} in the environment `{self.environment.label}`"


@dataclass(frozen=True)
class Result:
    name: str
    environment: str
    verdict: str
    counts: Counts
    seconds: float
    cpu_seconds: float = 0.0
    """Tells how much of the time a busy machine cost."""
    trouble: str = ""
    """Told once more at the end."""
    failed: tuple[str, ...] = ()
    """Tests, by their pytest ids."""
    test_seconds: dict[str, float] = field(default_factory=dict)
    """The same."""

    @property
    def is_fine(self) -> bool:
        return self.verdict not in ("FAILED", "DIED")

    def row(self) -> list[str]:
        numbers = [self.counts.passed, self.counts.failed, self.counts.skipped, self.counts.not_run]
        return [
            self.name,
            self.environment,
            self.verdict,
            *map(str, numbers),
            f"{self.seconds:.0f}",
            f"{self.cpu_seconds:.0f}",
        ]


def test(clone: Clone, choice: Choice) -> int:
    """Run the named packages' tests, or lint and everything; print the table; return the exit code."""
    suites = _suites(clone, choice)
    if not suites:
        raise ToolError(f"no package that was asked for is tested with release {choice.release} of an engine", 2)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as records:
        jobs = [] if choice.names or choice.release else [_lint_job(clone)]
        jobs += [_suite_job(clone, suite, choice, Path(records)) for suite in suites]
        if choice.lanes > 1 and len(jobs) > 1:
            share_cores(choice.lanes)
            results = run_side_by_side(jobs, choice.lanes)
        else:
            results = [job.run() for job in jobs]
    return _report(results, choice, time.monotonic() - started)


def share_cores(lanes: int) -> None:
    """Numerical libraries take all cores, and two that do so wait for each other."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // lanes)))


# --- What is run ------------------------------------------------------------------------------------------------------


def _suites(clone: Clone, choice: Choice) -> list[Suite]:
    packages, names = discover(clone), choice.names
    environment = shared(clone, "test")
    try:
        chosen = select(packages, [name for name in names if name != TOOLS]) if set(names) != {TOOLS} else []
    except ToolError as error:
        raise ToolError(f"{error}, and {TOOLS} (this tooling's own tests)", error.exit_code) from None
    suites = []
    for package in chosen:
        if choice.release is None:
            needed = package.test_system_packages
            suites.append(Suite(package.name, environment, (package.tests,), package.engine_tests, needed))
        suites += _engine_suites(clone, package, packages, choice) if choice.engines else []
    if choice.release is None and (not names or TOOLS in names):
        suites.append(Suite(TOOLS, environment, (clone.root / "tools" / "tests",)))
    return suites


def _engine_suites(clone: Clone, package: Package, packages: Sequence[Package], choice: Choice) -> list[Suite]:
    owner = environment_owner(package, packages)
    if owner is None:
        return []
    needed = package.test_system_packages
    releases = releases_of(owner)
    if owner is not package or not releases:
        # Another package's environment is tested in its own release only.
        own = releases[0] if releases else None
        suite = Suite(package.name, engine_of(clone, owner, own), (package.engine_tests,), system_packages=needed)
        return [suite] if choice.release in (None, OWN, own and own.version) else []
    if choice.release not in (None, OWN):
        releases = [release for release in releases if release.version == choice.release]
    elif choice.release == OWN or not choice.everything:
        releases = releases[:1]
    return [
        Suite(package.name, engine_of(clone, owner, release), release.tests, system_packages=needed)
        for release in releases
    ]


def _lint_job(clone: Clone) -> Job[Result]:
    def run() -> Result:
        started = time.monotonic()
        verdict = "FAILED" if lint(clone, fix=False) else "passed"
        return Result("lint", "lint", verdict, Counts(), time.monotonic() - started)

    return Job(
        "lint",
        (shared(clone, "test"), shared(clone, "lint")),
        run,
        lambda error: _without("lint", "lint", error),
        went_well=_went_well,
    )


def _suite_job(clone: Clone, suite: Suite, choice: Choice, records: Path) -> Job[Result]:
    record = Path(tempfile.mkdtemp(dir=records))
    return Job(
        suite.label,
        (suite.environment,),
        lambda: _run(clone, suite, choice, record),
        lambda error: _without(suite.name, suite.environment.label, error),
        lambda: _progress(record),
        _went_well,
    )


def _went_well(result: Result) -> bool:
    return result.is_fine


def _without(name: str, environment: str, error: ToolError) -> Result:
    return Result(name, environment, "FAILED", Counts(failed=1), 0.0, trouble=f"{name} was not tested: {error}")


def _progress(record: Path) -> str:
    found = read_record(record)
    return f"({len(found.outcomes)} of {len(found.collected)} tests)" if found.collected else ""


# --- One run ----------------------------------------------------------------------------------------------------------


def _run(clone: Clone, suite: Suite, choice: Choice, folder: Path) -> Result:
    say(suite.label)
    provide(clone, suite.system_packages)
    started = time.monotonic()
    if not all(path.exists() for path in suite.tests):
        return Result(suite.name, suite.environment.label, "no tests", Counts(), 0.0)
    ended = suite.environment.run_keeping_tail(_pytest(clone, suite, choice, folder))
    record = read_record(folder)
    verdict = {0: "passed", NO_TESTS_COLLECTED: "no tests"}.get(ended.code, "FAILED")
    counts, trouble = record.counts, ""
    if ended.code < 0 or not record.complete:
        verdict = "DIED"
        trouble = str(Death(f"{suite.name} in `{suite.environment.label}`", ended.code, record, ended.last_lines))
        # Without a test to blame it is a failure all the same.
        counts = counts if counts.failed else counts + Counts(failed=1)
    seconds = time.monotonic() - started
    label, failed = suite.environment.label, tuple(record.failed)
    return Result(suite.name, label, verdict, counts, seconds, ended.cpu_seconds, trouble, failed, record.seconds)


def _pytest(clone: Clone, suite: Suite, choice: Choice, record: Path) -> list[object]:
    ignored = [f"--ignore={suite.ignored}"] if suite.ignored else []
    colour = ["--color=yes"] if sys.stdout.isatty() else []
    selected = [] if choice.everything else ["-m", LEFT_OUT]
    config = ["-c", clone.root / "pyproject.toml"]
    return [RECORDED_PYTEST, record, *config, *colour, *suite.tests, *ignored, *selected, *choice.pytest]


SLOW, MOST_SLOW = 20.0, 15
"""Seconds, and tests that are named for taking longer."""


def _print_slowest(results: Sequence[Result]) -> None:
    """Where a long run's time goes."""
    took = [(seconds, test, result) for result in results for test, seconds in result.test_seconds.items()]
    slowest = sorted((each for each in took if each[0] >= SLOW), key=lambda each: -each[0])[:MOST_SLOW]
    if slowest:
        print()
        rows = [[test, result.environment, f"{seconds:.0f}"] for seconds, test, result in slowest]
        print_table(("slowest tests", "environment", "seconds"), rows)


_COLUMNS = ("package", "environment", "result", "passed", "failed", "skipped", "not run")


def _report(results: Sequence[Result], choice: Choice, seconds: float) -> int:
    rows = [result.row() for result in results]
    print()
    print_table((*_COLUMNS, "seconds", "CPU seconds"), rows)
    _print_slowest(results)
    for trouble in filter(None, (result.trouble for result in results)):
        complain(trouble)
    for result in results:
        for test_id in result.failed:
            complain(f"{test_id} failed in `{result.environment}`")
    total = sum((result.counts for result in results), Counts())
    # With a selection of the caller's own (-k, -m), a package without a match is at no fault.
    empty = [result.name for result in results if result.verdict == "no tests" and not choice.pytest]
    for name in empty:
        complain(f"{name} collected no test at all")
    failed = bool(empty) or not all(result.is_fine for result in results) or total.collected == 0
    say(f"{seconds / 60:.1f} minutes")
    print(total, flush=True)
    return 1 if failed else 0
