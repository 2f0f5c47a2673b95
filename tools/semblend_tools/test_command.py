"""`run.py test`: one pytest run per package and environment, then a table of what happened."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from semblend_tools.clone import Clone
from semblend_tools.environments import Environment, engine_of, shared
from semblend_tools.errors import ToolError
from semblend_tools.junit import NO_TESTS_COLLECTED, Counts, read_counts
from semblend_tools.lint_command import lint
from semblend_tools.packages import Package, discover, select
from semblend_tools.progress import complain, say
from semblend_tools.system_packages import provide
from semblend_tools.tables import print_table

TOOLS = "tools"


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

    def row(self) -> list[str]:
        numbers = [self.counts.passed, self.counts.failed, self.counts.skipped]
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
    code, counts = NO_TESTS_COLLECTED, Counts()
    if suite.tests.is_dir():
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "junit.xml"
            code = suite.environment.run(_pytest(clone, suite, report, pytest_arguments))
            # A pytest that dies before it writes its report is one failure, not none.
            counts = read_counts(report) if report.is_file() else Counts(failed=1)
    verdict = {0: "passed", NO_TESTS_COLLECTED: "no tests"}.get(code, "FAILED")
    return Result(suite.name, suite.environment.label, verdict, counts, time.monotonic() - started)


def _pytest(clone: Clone, suite: Suite, report: Path, extra: Sequence[str]) -> list[object]:
    ignored = [f"--ignore={suite.ignored}"] if suite.ignored else []
    config = ["-c", clone.root / "pyproject.toml"]
    return ["-m", "pytest", *config, suite.tests, *ignored, f"--junitxml={report}", *extra]


def _report(results: Sequence[Result], pytest_arguments: Sequence[str]) -> int:
    rows = [result.row() for result in results]
    print()
    print_table(("package", "environment", "result", "passed", "failed", "skipped", "seconds"), rows)
    total = sum((result.counts for result in results), Counts())
    # With a selection of the caller's own (-k, -m), a package without a match is at no fault.
    empty = [result.name for result in results if result.verdict == "no tests" and not pytest_arguments]
    for name in empty:
        complain(f"{name} collected no test at all")
    failed = bool(empty) or any(result.verdict == "FAILED" for result in results) or total.collected == 0
    print(total, flush=True)
    return 1 if failed else 0
