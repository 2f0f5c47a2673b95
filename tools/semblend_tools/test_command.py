"""`run.py test`: one pytest run per package and environment, then a table of what happened."""

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from semblend_tools.clone import Clone
from semblend_tools.environments import Environment, engine_of, shared
from semblend_tools.errors import ToolError
from semblend_tools.lint_command import lint
from semblend_tools.packages import Package, discover, select
from semblend_tools.progress import complain, say
from semblend_tools.system_packages import provide
from semblend_tools.tables import print_table
from semblend_tools.test_record import NO_TESTS_COLLECTED, Counts, Death, read_record

TOOLS = "tools"

# A script of its own, because the tests' environments do not hold this tooling.
RECORDED_PYTEST = Path(__file__).resolve().parents[1] / "recorded_pytest.py"


@dataclass(frozen=True)
class Suite:
    """One pytest run."""

    name: str
    environment: Environment
    tests: Path
    ignored: Path | None = None
    system_packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    name: str
    environment: str
    verdict: str
    counts: Counts
    seconds: float
    death: Death | None = None

    def row(self) -> list[str]:
        numbers = [self.counts.passed, self.counts.failed, self.counts.skipped, self.counts.not_run]
        return [self.name, self.environment, self.verdict, *map(str, numbers), f"{self.seconds:.1f}"]


def test(clone: Clone, names: Sequence[str], pytest_arguments: Sequence[str], *, engines: bool) -> int:
    """Run the named packages' tests, or lint and everything; print the table; return the exit code."""
    suites = _suites(clone, names, engines=engines)
    results = []
    if not names:
        started = time.monotonic()
        verdict = "FAILED" if lint(clone, fix=False) else "passed"
        results.append(Result("lint", "lint", verdict, Counts(), time.monotonic() - started))
    results += [_run(clone, suite, pytest_arguments) for suite in suites]
    return _report(results, pytest_arguments)


def _suites(clone: Clone, names: Sequence[str], *, engines: bool) -> list[Suite]:
    packages = discover(clone)
    environment = shared(clone, "test")
    try:
        chosen = select(packages, [name for name in names if name != TOOLS]) if set(names) != {TOOLS} else []
    except ToolError as error:
        raise ToolError(f"{error}, and {TOOLS} (this tooling's own tests)", error.exit_code) from None
    suites = []
    for package in chosen:
        needed = package.test_system_packages
        suites.append(Suite(package.name, environment, package.tests, package.engine_tests, needed))
        suites += _engine_suites(clone, package) if engines else []
    if not names or TOOLS in names:
        suites.append(Suite(TOOLS, environment, clone.root / "tools" / "tests"))
    return suites


def _engine_suites(clone: Clone, package: Package) -> list[Suite]:
    if package.has_engine_environment:
        return [Suite(package.name, engine_of(clone, package), package.engine_tests)]
    if package.engine_tests.is_dir():
        raise ToolError(
            f"{clone.relative(package.engine_tests)} needs an environment to run in: declare "
            f"[tool.hatch.envs.engine] in {clone.relative(package.path)}/pyproject.toml"
        )
    return []


def _run(clone: Clone, suite: Suite, pytest_arguments: Sequence[str]) -> Result:
    say(f"testing {suite.name} in the environment `{suite.environment.label}`")
    provide(clone, suite.system_packages)
    started = time.monotonic()
    if not suite.tests.is_dir():
        return Result(suite.name, suite.environment.label, "no tests", Counts(), 0.0)
    with tempfile.TemporaryDirectory() as folder:
        words = _pytest(clone, suite, Path(folder), pytest_arguments)
        code, last_lines = suite.environment.run_keeping_tail(words)
        record = read_record(Path(folder))
    verdict = {0: "passed", NO_TESTS_COLLECTED: "no tests"}.get(code, "FAILED")
    counts, death = record.counts, None
    if code < 0 or not record.complete:
        verdict, death = "DIED", Death(f"{suite.name} in `{suite.environment.label}`", code, record, last_lines)
        # Without a test to blame it is a failure all the same.
        counts = counts if counts.failed else counts + Counts(failed=1)
    return Result(suite.name, suite.environment.label, verdict, counts, time.monotonic() - started, death)


def _pytest(clone: Clone, suite: Suite, record: Path, extra: Sequence[str]) -> list[object]:
    ignored = [f"--ignore={suite.ignored}"] if suite.ignored else []
    config = ["-c", clone.root / "pyproject.toml"]
    colour = ["--color=yes"] if sys.stdout.isatty() else []
    return [RECORDED_PYTEST, record, *config, *colour, suite.tests, *ignored, *extra]


def _report(results: Sequence[Result], pytest_arguments: Sequence[str]) -> int:
    rows = [result.row() for result in results]
    print()
    print_table(("package", "environment", "result", "passed", "failed", "skipped", "not run", "seconds"), rows)
    for death in filter(None, (result.death for result in results)):
        complain(str(death))
    total = sum((result.counts for result in results), Counts())
    # With a selection of the caller's own (-k, -m), a package without a match is at no fault.
    empty = [result.name for result in results if result.verdict == "no tests" and not pytest_arguments]
    for name in empty:
        complain(f"{name} collected no test at all")
    failed = bool(empty) or any(result.verdict in ("FAILED", "DIED") for result in results) or total.collected == 0
    print(total, flush=True)
    return 1 if failed else 0
