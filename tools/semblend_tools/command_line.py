"""The commands of tools/run.py and their arguments."""

import argparse
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from semblend_tools import (
    bench_command,
    build_command,
    changed_command,
    lint_command,
    minimum_core,
    pins_command,
    release_command,
    test_command,
    workflow_command,
)
from semblend_tools.clone import Clone, this_clone
from semblend_tools.environments import shared
from semblend_tools.errors import ToolError
from semblend_tools.processes import end_what_runs
from semblend_tools.progress import complain

# Everything after these goes to sembench untouched, also --help, so argparse must not see it.
PASSED_THROUGH: dict[str, list[str]] = {"demo": ["demo"], "sembench": []}


def main(arguments: Sequence[str]) -> int:
    clone, told_to_end = this_clone(), _ends_when_told()
    try:
        if arguments and arguments[0] in PASSED_THROUGH:
            words = [*PASSED_THROUGH[arguments[0]], *arguments[1:]]
            return shared(clone, "test").run_program("sembench", words)
        return _dispatch(clone, arguments)
    except BaseException as error:
        if told_to_end:  # Which may come out as another error of what it interrupted.
            complain("interrupted")
            end_what_runs()
            return 130
        if not isinstance(error, ToolError):
            raise
        complain(str(error))
        return error.exit_code


def _ends_when_told() -> list[int]:
    """From now on a signal to end interrupts us, and is noted here."""
    told: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        told.append(number)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)
    return told


def _dispatch(clone: Clone, arguments: Sequence[str]) -> int:
    ours, after_dashes = list(arguments), []
    if "--" in ours:
        at = ours.index("--")
        ours, after_dashes = ours[:at], ours[at + 1 :]
    parser = _Parser()
    options, unknown = parser.root.parse_known_args(ours)
    # Only a benchmark has options that we cannot know.
    if unknown and not hasattr(options, "takes_any_option"):
        parser.root.error(f"unrecognized arguments: {' '.join(unknown)}")
    options.passed_on = [*unknown, *after_dashes]
    code: int = options.handler(clone, options)
    return code


class _Parser:
    """One method per command, in the order that --help lists them."""

    def __init__(self) -> None:
        self.root = argparse.ArgumentParser(
            prog="tools/run.py",
            description="Set up, test, measure, build and release the packages of this workspace. "
            "Environments are made on first use, inside the clone.",
        )
        self._commands = self.root.add_subparsers(title="commands", required=True, metavar="COMMAND")
        self._commands.add_parser("demo", help="show what SemBlend does (arguments go to `sembench demo`)")
        self._test()
        self._lint()
        self._bench()
        self._commands.add_parser("sembench", help="the sembench command line (arguments go to it)")
        self._build()
        self._minimum_core()
        self._pins()
        self._release()
        self._changed()
        self._ci_workflow()

    def _add(
        self, name: str, summary: str, handler: Callable[[Clone, argparse.Namespace], int]
    ) -> argparse.ArgumentParser:
        command = self._commands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
        )
        command.set_defaults(handler=handler)
        return command

    def _test(self) -> None:
        command = self._add(
            "test",
            "lint and test everything, or test the named packages",
            lambda clone, given: test_command.test(
                clone,
                test_command.Choice(
                    names=tuple(given.package),
                    engines=not given.no_engine,
                    everything=given.all,
                    release=given.engine_release,
                    lanes=given.lanes,
                    pytest=tuple(given.passed_on),
                ),
            ),
        )
        command.epilog = "Arguments after `--` go to pytest: tools/run.py test semblend-core -- -k span -x"
        command.add_argument("package", nargs="*", help="packages to test; `tools` is this tooling's own tests")
        command.add_argument(
            "--no-engine", action="store_true", help="leave out the tests that need an engine environment"
        )
        command.add_argument(
            "--all", action="store_true", help="add older releases of the engines, long state machines and soaks"
        )
        command.add_argument(
            "--engine-release",
            metavar="VERSION",
            help="only engine tests, in this release of the engine; `own`: the environment's",
        )
        command.add_argument(
            "--lanes",
            type=int,
            default=min(2, os.cpu_count() or 1),
            metavar="N",
            help="packages tested at a time (default: %(default)s); with 1, output comes as it is written",
        )

    def _lint(self) -> None:
        command = self._add(
            "lint",
            "check style, format, types and import boundaries",
            lambda clone, given: lint_command.lint(clone, fix=given.fix),
        )
        command.add_argument("--fix", action="store_true", help="apply ruff's fixes and formatting")

    def _bench(self) -> None:
        command = self._add(
            "bench",
            "run one benchmark; without a name, list them",
            lambda clone, given: bench_command.bench(clone, given.name, given.quick, given.passed_on),
        )
        command.epilog = "Other options go to the benchmark. Its last line of output is one JSON object."
        command.add_argument("name", nargs="?", help="a file of packages/*/benchmarks, as NAME or PACKAGE/NAME")
        command.add_argument("--quick", action="store_true", help="a short run: does it work, not how fast it is")
        command.set_defaults(takes_any_option=True)

    def _build(self) -> None:
        command = self._add(
            "build",
            "build wheels and sdists into dist/, and install and import each wheel alone",
            lambda clone, given: build_command.build(clone, given.package),
        )
        command.add_argument("package", nargs="*", help="packages to build (those they need come along); default all")

    def _minimum_core(self) -> None:
        command = self._add(
            "minimum-core",
            "test packages against the oldest semblend-core their pyproject.toml admits",
            lambda clone, given: minimum_core.minimum_core(clone, given.package),
        )
        command.add_argument("package", nargs="*", help="packages to check; default all that depend on semblend-core")

    def _pins(self) -> None:
        command = self._add(
            "pins",
            "note what adapters rely upon inside each supported release of their engines",
            lambda clone, given: pins_command.pins(clone, given.package, given.sources),
        )
        command.add_argument("package", nargs="*", help="adapters to write pins of; default all")
        command.add_argument(
            "--sources", type=Path, metavar="FOLDER", help="read this unpacked wheel instead of the installed releases"
        )

    def _release(self) -> None:
        command = self._add(
            "release",
            "write changelog and version of one package, commit and tag (locally)",
            lambda clone, given: release_command.release(clone, given.package, dry_run=given.dry_run),
        )
        command.add_argument("package", help="the package to release")
        command.add_argument("--dry-run", action="store_true", help="show all of it and change nothing")

    def _changed(self) -> None:
        command = self._add(
            "changed",
            "list the packages that a change can affect",
            lambda clone, given: changed_command.changed(clone, given.since, as_json=given.json),
        )
        command.add_argument(
            "--since", metavar="REV", help="default: where this branch left origin/main, or else HEAD~1"
        )
        command.add_argument("--json", action="store_true", help="one JSON object, for CI")

    def _ci_workflow(self) -> None:
        command = self._add(
            "ci-workflow",
            "write ci/github-workflow.yml from the list of packages",
            lambda clone, given: workflow_command.ci_workflow(clone, check=given.check),
        )
        command.add_argument("--check", action="store_true", help="only say whether it is up to date")
