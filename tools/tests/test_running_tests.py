"""`run.py test` on a small workspace, with this very environment standing in for the shared one."""

from typing import Any

import pytest

from semblend_tools import environments
from semblend_tools.errors import ToolError
from semblend_tools.test_command import test as run_tests


@pytest.fixture
def ready(workspace: Any, monkeypatch: Any) -> Any:
    workspace.add("semblend-core")
    workspace.pretend_environment("test")
    monkeypatch.setattr(environments, "ensure", lambda environment: None)
    return workspace


def last_line(capfd: Any) -> str:
    lines: list[str] = capfd.readouterr().out.splitlines()
    return lines[-1]


def test_the_last_line_is_the_total(ready: Any, capfd: Any) -> None:
    ready.add("semblend-alpha")
    assert run_tests(ready.clone, ["semblend-core", "semblend-alpha"], [], engines=True) == 0
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
    assert run_tests(ready.clone, ["semblend-core"], [], engines=True) == 1
    assert last_line(capfd) == "1 passed, 2 failed, 1 skipped"


def test_a_package_without_a_test_fails(ready: Any, capfd: Any) -> None:
    (ready.add("semblend-alpha") / "tests" / "test_it.py").write_text("")
    (ready.add("semblend-beta") / "tests" / "test_it.py").unlink()
    assert run_tests(ready.clone, ["semblend-core", "semblend-alpha", "semblend-beta"], [], engines=True) == 1
    captured = capfd.readouterr()
    assert "semblend-alpha collected no test at all" in captured.err
    assert "semblend-beta collected no test at all" in captured.err


def test_with_a_selection_a_package_may_have_no_match(ready: Any, capfd: Any) -> None:
    (ready.add("semblend-alpha") / "tests" / "test_it.py").write_text("def test_other(): pass\n")
    assert run_tests(ready.clone, ["semblend-core", "semblend-alpha"], ["-k", "other"], engines=True) == 0
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
    "os.kill(os.getpid(), signal.SIGQUIT)": "it was killed by SIGQUIT",
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
    assert run_tests(ready.clone, ["semblend-core", "semblend-alpha"], [], engines=True) == 1
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
    assert run_tests(ready.clone, ["semblend-core"], [], engines=True) == 1
    told = capfd.readouterr().err.partition("its last lines:")[2]
    assert "in test_last" in told


def test_a_pytest_that_dies_before_its_first_test_counts_as_a_failure(ready: Any, capfd: Any) -> None:
    ready.write("packages/semblend-core/tests/test_it.py", "import os\nos._exit(3)\n")
    assert run_tests(ready.clone, ["semblend-core"], [], engines=True) == 1
    captured = capfd.readouterr()
    assert captured.out.splitlines()[-1] == "0 passed, 1 failed"
    assert "it ended with exit code 3, before it had collected its tests" in captured.err


def test_a_pytest_that_dies_after_its_last_test_has_failed(ready: Any, capfd: Any) -> None:
    dying = "import atexit, os\natexit.register(os.abort)\ndef test_it(): pass\n"
    ready.write("packages/semblend-core/tests/test_it.py", dying)
    assert run_tests(ready.clone, ["semblend-core"], [], engines=True) == 1
    captured = capfd.readouterr()
    assert captured.out.splitlines()[-1] == "1 passed, 1 failed"
    assert "it was killed by SIGABRT, after its last test" in captured.err


def test_a_test_that_hangs_ends_the_run_and_says_where(ready: Any, capfd: Any) -> None:
    limits = "faulthandler_timeout = 0.5\nfaulthandler_exit_on_timeout = true\n"
    ready.write("pyproject.toml", f"[tool.pytest.ini_options]\n{limits}")
    ready.write("packages/semblend-core/tests/test_it.py", DYING.format(death="import time; time.sleep(600)"))
    assert run_tests(ready.clone, ["semblend-core"], [], engines=True) == 1
    told = capfd.readouterr().err
    assert "test_it.py::test_last" in told
    assert "Timeout" in told


def test_a_run_that_stops_at_the_first_failure_tells_how_many_it_left_out(ready: Any, capfd: Any) -> None:
    ready.write("packages/semblend-core/tests/test_it.py", DYING.format(death="assert False"))
    assert run_tests(ready.clone, ["semblend-core"], ["-x"], engines=True) == 1
    assert last_line(capfd) == "3 passed, 1 failed, 1 skipped, 2 not run"


def test_engine_tests_never_run_in_the_shared_environment(ready: Any, capfd: Any) -> None:
    ready.write("packages/semblend-core/tests/engine/test_engine.py", "raise RuntimeError\n")
    assert run_tests(ready.clone, ["semblend-core"], [], engines=False) == 0
    with pytest.raises(ToolError, match=r"declare \[tool.hatch.envs.engine\] in packages/semblend-core/pyproject.toml"):
        run_tests(ready.clone, ["semblend-core"], [], engines=True)


def test_an_unknown_package_lists_the_known_ones(ready: Any) -> None:
    with pytest.raises(ToolError, match=r"no such package: nope. The packages are: semblend-core, and tools") as caught:
        run_tests(ready.clone, ["nope"], [], engines=True)
    assert caught.value.exit_code == 2
