"""`run.py test` on a small workspace, with this very environment standing in for the shared one."""

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from semblend_core.testing import wait_until
from semblend_tools import environments, processes, test_command
from semblend_tools.errors import ToolError
from semblend_tools.test_command import Choice
from semblend_tools.test_command import test as run_choice


@pytest.fixture
def ready(workspace: Any, monkeypatch: Any) -> Any:
    workspace.add("semblend-core")
    workspace.pretend_environment("test")
    monkeypatch.setattr(environments, "ensure", lambda environment: None)
    return workspace


def run_tests(clone: Any, names: list[str], pytest: list[str] | None = None, **options: Any) -> int:
    return run_choice(clone, Choice(tuple(names), pytest=tuple(pytest or ()), **options))


def last_line(capfd: Any) -> str:
    lines: list[str] = capfd.readouterr().out.splitlines()
    return lines[-1]


def test_the_last_line_is_the_total(ready: Any, capfd: Any) -> None:
    ready.add("semblend-alpha")
    assert run_tests(ready.clone, ["semblend-core", "semblend-alpha"]) == 0
    assert last_line(capfd) == "2 passed, 0 failed"


def test_failures_errors_and_skips_are_counted(ready: Any, capfd: Any) -> None:
    ready.write(
        "packages/semblend-core/tests/test_it.py",
        """\
import pytest
@pytest.fixture
def broken(): raise RuntimeError
def test_good(): pass
def test_bad(): assert False
def test_error(broken): pass
def test_skipped(): pytest.skip("why not")
""",
    )
    assert run_tests(ready.clone, ["semblend-core"]) == 1
    assert last_line(capfd) == "1 passed, 2 failed, 1 skipped"


def test_what_takes_long_is_named(ready: Any, capfd: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(test_command, "SLOW", 0.2)
    slow = "import time\ndef test_slow(): time.sleep(0.5)\ndef test_fast(): pass\n"
    ready.write("packages/semblend-core/tests/test_it.py", slow)
    assert run_tests(ready.clone, ["semblend-core"]) == 0
    table = capfd.readouterr().out.partition("slowest tests")[2]
    assert "test_it.py::test_slow" in table
    assert "test_fast" not in table


def test_a_package_without_a_test_fails(ready: Any, capfd: Any) -> None:
    (ready.add("semblend-alpha") / "tests" / "test_it.py").write_text("")
    (ready.add("semblend-beta") / "tests" / "test_it.py").unlink()
    assert run_tests(ready.clone, ["semblend-core", "semblend-alpha", "semblend-beta"]) == 1
    captured = capfd.readouterr()
    assert "semblend-alpha collected no test at all" in captured.err
    assert "semblend-beta collected no test at all" in captured.err


def test_with_a_selection_a_package_may_have_no_match(ready: Any, capfd: Any) -> None:
    (ready.add("semblend-alpha") / "tests" / "test_it.py").write_text("def test_other(): pass\n")
    assert run_tests(ready.clone, ["semblend-core", "semblend-alpha"], ["-k", "other"]) == 0
    assert last_line(capfd) == "1 passed, 0 failed"


DYING = """\
import os, signal, sys
import pytest
@pytest.mark.parametrize("n", range(3))
def test_good(n): pass
def test_skipped(): pytest.skip("why not")
def test_last():
    os.write(1, b"a word of the engine\\n")
    {death}
def test_missed(): pass
def test_missed_too(): pass
"""

DEATHS = {
    # What a shell starts in the background ignores this signal, and so do its children.
    "signal.signal(signal.SIGQUIT, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGQUIT)": "it was killed by SIGQUIT",
    "os.kill(os.getpid(), signal.SIGKILL)": "it was killed by SIGKILL (was the memory full?)",
    "import ctypes; ctypes.string_at(0)": "it was killed by SIGSEGV",
    "os._exit(3)": "it ended with exit code 3",
    "os._exit(0)": "it ended with exit code 0",
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_pytest_that_dies_is_told_with_its_last_words_and_what_did_not_run(
    ready: Any, capfd: Any, death: str
) -> None:
    ready.write("packages/semblend-core/tests/test_it.py", DYING.format(death=death))
    ready.write("packages/semblend-core/tests/test_later.py", "def test_a(): pass\ndef test_b(): pass\n")
    ready.add("semblend-alpha")
    assert run_tests(ready.clone, ["semblend-core", "semblend-alpha"]) == 1
    captured = capfd.readouterr()
    assert captured.out.splitlines()[-1] == "4 passed, 1 failed, 1 skipped, 4 not run", (
        "and the next package was tested"
    )
    row = next(line.split() for line in captured.out.splitlines() if line.startswith("semblend-core "))
    assert row[:7] == ["semblend-core", "test", "DIED", "3", "1", "1", "4"]
    file = "packages/semblend-core/tests/test_it.py"
    assert f"semblend-core in `test` died: {DEATHS[death]}, while it ran {file}::test_last" in captured.err
    assert "    | a word of the engine" in captured.err
    assert "4 of 9 tests did not run:" in captured.err
    assert f"    {file}::test_missed\n    {file}::test_missed_too\n" in captured.err
    assert "    packages/semblend-core/tests/test_later.py: all 2" in captured.err


def test_a_pytest_that_dies_of_a_fault_shows_where(ready: Any, capfd: Any) -> None:
    ready.write("packages/semblend-core/tests/test_it.py", DYING.format(death="import ctypes; ctypes.string_at(0)"))
    assert run_tests(ready.clone, ["semblend-core"]) == 1
    told = capfd.readouterr().err.partition("its last lines:")[2]
    assert "in test_last" in told


def test_a_pytest_that_dies_before_its_first_test_counts_as_a_failure(ready: Any, capfd: Any) -> None:
    ready.write("packages/semblend-core/tests/test_it.py", "import os\nos._exit(3)\n")
    assert run_tests(ready.clone, ["semblend-core"]) == 1
    captured = capfd.readouterr()
    assert captured.out.splitlines()[-1] == "0 passed, 1 failed"
    assert "it ended with exit code 3, before it had collected its tests" in captured.err


def test_a_pytest_that_dies_after_its_last_test_has_failed(ready: Any, capfd: Any) -> None:
    dying = "import atexit, os\natexit.register(os.abort)\ndef test_it(): pass\n"
    ready.write("packages/semblend-core/tests/test_it.py", dying)
    assert run_tests(ready.clone, ["semblend-core"]) == 1
    captured = capfd.readouterr()
    assert captured.out.splitlines()[-1] == "1 passed, 1 failed"
    assert "it was killed by SIGABRT, after its last test" in captured.err


def test_what_a_pytest_that_dies_leaves_running_is_ended(ready: Any, tmp_path: Any) -> None:
    leaves = f"""\
import os, subprocess
def test_it():
    engine = subprocess.Popen(["sleep", "600"], start_new_session=True)
    open({str(tmp_path / "engine")!r}, "w").write(str(engine.pid))
    os._exit(1)
"""
    ready.write("packages/semblend-core/tests/test_it.py", leaves)
    assert run_tests(ready.clone, ["semblend-core"]) == 1
    engine = Path("/proc") / (tmp_path / "engine").read_text()
    wait_until(lambda: not engine.exists() or "State:\tZ" in (engine / "status").read_text(), "the engine ended")


def test_what_is_at_its_very_start_is_ended_too() -> None:
    """Until a program has begun it has no environment. Here for longer than it takes to look once."""
    began = processes.uptime()
    slowly = subprocess.Popen(["env", "-i", "sh", "-c", "sleep 0.3; RUN_PY_COMMAND=mine exec sleep 600"])
    other = subprocess.Popen(["env", "-i", "sleep", "600"])
    try:
        processes.end_leftovers("mine", began)
        assert slowly.wait(60) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


TOLD_TO_END = """\
import sys
from semblend_tools import command_line, processes
processes._LEFT_BEHIND_S = 0.2
starting = ["sh", "-c", "setsid sleep 600 & echo $!; exec sleep 600"]
command_line._dispatch = lambda clone, arguments: processes.call_keeping_tail(clone, starting).code
sys.exit(command_line.main([]))
"""
ANOTHER_ERROR = """\
started = processes.threading.Thread.start
def start(thread):
    started(thread)
    try:
        processes.time.sleep(600)
    except KeyboardInterrupt as interrupt:
        raise RuntimeError("release unlocked lock") from interrupt
processes.threading.Thread.start = start
"""


@pytest.mark.parametrize("comes_out_as", ["", ANOTHER_ERROR], ids=["an interrupt", "another error"])
def test_what_a_run_had_started_ends_with_it(comes_out_as: str) -> None:
    tools = Path(processes.__file__).parents[1]
    program = TOLD_TO_END.replace("sys.exit(", f"{comes_out_as}sys.exit(")
    run = subprocess.Popen([sys.executable, "-c", program], cwd=tools, stdout=subprocess.PIPE)
    assert run.stdout is not None
    engine = Path("/proc") / run.stdout.readline().decode().strip()
    assert engine.exists()
    run.terminate()
    assert run.wait(60) == 130
    wait_until(lambda: not engine.exists() or "State:\tZ" in (engine / "status").read_text(), "the engine ended")


def test_a_test_that_hangs_ends_the_run_and_says_where(ready: Any, capfd: Any) -> None:
    limits = "faulthandler_timeout = 0.5\nfaulthandler_exit_on_timeout = true\n"
    ready.write("pyproject.toml", f"[tool.pytest.ini_options]\n{limits}")
    ready.write("packages/semblend-core/tests/test_it.py", DYING.format(death="import time; time.sleep(600)"))
    assert run_tests(ready.clone, ["semblend-core"]) == 1
    told = capfd.readouterr().err
    assert "test_it.py::test_last" in told
    assert "Timeout" in told


def test_a_run_that_stops_at_the_first_failure_tells_how_many_it_left_out(ready: Any, capfd: Any) -> None:
    ready.write("packages/semblend-core/tests/test_it.py", DYING.format(death="assert False"))
    assert run_tests(ready.clone, ["semblend-core"], ["-x"]) == 1
    assert last_line(capfd) == "3 passed, 1 failed, 1 skipped, 2 not run"


def test_engine_tests_never_run_in_the_shared_environment(ready: Any, capfd: Any) -> None:
    ready.write("packages/semblend-core/tests/engine/test_engine.py", "raise RuntimeError\n")
    assert run_tests(ready.clone, ["semblend-core"], engines=False) == 0
    with pytest.raises(
        ToolError, match=r"of semblend-core need an environment .* declare \[tool\.hatch\.envs\.engine\]"
    ):
        run_tests(ready.clone, ["semblend-core"])


def test_an_unknown_package_lists_the_known_ones(ready: Any) -> None:
    with pytest.raises(ToolError, match=r"no such package: nope. The packages are: semblend-core, and tools") as caught:
        run_tests(ready.clone, ["nope"])
    assert caught.value.exit_code == 2


ENGINE = "[tool.hatch.envs.engine]\n[tool.semblend.engine]\nname = 'toy'\nrelease = '2.0'\n"
OLDER = "[tool.semblend.engine.older.'1.0']\ninstall = ['toy==1.0']\ntests = ['test_old.py']\n"
HEARD = """\
import os
def test_it(): assert os.environ["SEMBLEND_REQUIRE_ENGINES"] == "toy=={version}"
"""


@pytest.fixture
def with_engine(ready: Any) -> Any:
    """A package with an engine of two releases, and one that uses its environment."""
    ready.add("semblend-alpha", settings=ENGINE + OLDER)
    ready.add("semblend-beta", settings="[tool.semblend.engine]\nenvironment-of = 'semblend-alpha'\n")
    ready.pretend_environment("semblend-alpha.engine")
    ready.write("packages/semblend-alpha/tests/engine/test_new.py", HEARD.format(version="2.0"))
    ready.write("packages/semblend-alpha/tests/engine/test_old.py", "def test_it(): pass\n")
    ready.write("packages/semblend-beta/tests/engine/test_beta.py", HEARD.format(version="2.0"))
    return ready


def table(output: str) -> list[list[str]]:
    """Package and environment of every row."""
    lines = output.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("package ")) + 2
    rows = [re.split(r" {2,}", line)[:2] for line in lines[start:]]
    return [row for row in rows if len(row) == 2]


def test_a_package_may_use_the_engine_environment_of_another(with_engine: Any, capfd: Any) -> None:
    assert run_tests(with_engine.clone, ["semblend-beta"]) == 0
    assert table(capfd.readouterr().out) == [["semblend-beta", "test"], ["semblend-beta", "semblend-alpha:engine"]]


def test_an_engine_environment_that_is_not_there_is_refused(ready: Any) -> None:
    ready.add("semblend-alpha", settings="[tool.semblend.engine]\nenvironment-of = 'semblend-core'\n")
    with pytest.raises(ToolError, match="`environment-of`"):
        run_tests(ready.clone, ["semblend-alpha"])


def test_older_releases_are_tested_with_all_or_when_they_are_named(with_engine: Any, capfd: Any) -> None:
    assert run_tests(with_engine.clone, ["semblend-alpha"]) == 0
    own = ["semblend-alpha", "semblend-alpha:engine"]
    older = ["semblend-alpha", "semblend-alpha:engine 1.0"]
    assert table(capfd.readouterr().out) == [["semblend-alpha", "test"], own]
    assert run_tests(with_engine.clone, ["semblend-alpha"], everything=True) == 0
    assert table(capfd.readouterr().out) == [["semblend-alpha", "test"], own, older]
    assert run_tests(with_engine.clone, [], release="1.0") == 0
    assert table(capfd.readouterr().out) == [older]
    with pytest.raises(ToolError, match=r"no package that was asked for is tested with release 3\.0"):
        run_tests(with_engine.clone, [], release="3.0")


def test_what_is_exhaustive_runs_with_all_only(ready: Any, capfd: Any) -> None:
    marked = "import pytest\n@pytest.mark.exhaustive\ndef test_long(): pass\ndef test_short(): pass\n"
    ready.write("packages/semblend-core/tests/test_it.py", marked)
    assert run_tests(ready.clone, ["semblend-core"]) == 0
    assert last_line(capfd) == "1 passed, 0 failed"
    assert run_tests(ready.clone, ["semblend-core"], everything=True) == 0
    assert last_line(capfd) == "2 passed, 0 failed"


def test_side_by_side_each_package_prints_in_one_piece_and_the_table_keeps_its_order(
    with_engine: Any, capfd: Any
) -> None:
    names = ["semblend-core", "semblend-alpha", "semblend-beta"]
    for name in names:
        talking = f"def test_it():\n    for n in range(50): print('{name}', n)\n    assert False\n"
        with_engine.write(f"packages/{name}/tests/test_it.py", talking)
    assert run_tests(with_engine.clone, names, lanes=2) == 1
    output = capfd.readouterr().out
    assert [row[0] for row in table(output)] == [names[0], names[1], names[1], names[2], names[2]]
    assert output.splitlines()[-1] == "3 passed, 3 failed"
    for name in names:
        assert "\n".join(f"{name} {n}" for n in range(50)) in output


def test_side_by_side_of_what_went_well_the_end_is_shown_and_what_failed_is_named_once_more(
    with_engine: Any, capfd: Any
) -> None:
    well = "import pytest\ndef test_it(): pass\n@pytest.mark.skip(reason='no moon tonight')\ndef test_that(): pass\n"
    with_engine.write("packages/semblend-core/tests/test_it.py", well)
    with_engine.write("packages/semblend-beta/tests/test_it.py", "def test_it(): assert 'sun' == 'moon'\n")
    assert run_tests(with_engine.clone, ["semblend-core", "semblend-beta"], lanes=2, pytest=("-rs",)) == 1
    captured = capfd.readouterr()
    of_core = captured.out.partition("---- testing semblend-core")[2].partition("[run]")[0]
    assert "no moon tonight" in of_core
    assert "1 passed, 1 skipped" in of_core
    assert "test session starts" not in of_core
    assert "assert 'sun' == 'moon'" in captured.out
    assert "packages/semblend-beta/tests/test_it.py::test_it failed in `test`" in captured.err


def test_side_by_side_an_environment_that_cannot_be_made_fails_its_packages_and_no_others(
    with_engine: Any, capfd: Any, monkeypatch: Any
) -> None:
    def ensure(environment: Any) -> None:
        if environment.owner:
            raise ToolError("no wheel for this machine")

    monkeypatch.setattr(environments, "ensure", ensure)
    assert run_tests(with_engine.clone, ["semblend-core", "semblend-alpha"], lanes=2) == 1
    captured = capfd.readouterr()
    assert captured.out.splitlines()[-1] == "2 passed, 1 failed"
    assert "semblend-alpha was not tested: no wheel for this machine" in captured.err
