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


def test_a_pytest_that_dies_counts_as_a_failure(ready: Any, capfd: Any) -> None:
    ready.write("packages/semblend-core/tests/test_it.py", "import os\nos._exit(3)\n")
    assert run_tests(ready.clone, ["semblend-core"], [], engines=True) == 1
    assert last_line(capfd) == "0 passed, 1 failed"


def test_engine_tests_never_run_in_the_shared_environment(ready: Any, capfd: Any) -> None:
    ready.write("packages/semblend-core/tests/engine/test_engine.py", "raise RuntimeError\n")
    assert run_tests(ready.clone, ["semblend-core"], [], engines=False) == 0
    with pytest.raises(ToolError, match=r"declare \[tool.hatch.envs.engine\] in packages/semblend-core/pyproject.toml"):
        run_tests(ready.clone, ["semblend-core"], [], engines=True)


def test_an_unknown_package_lists_the_known_ones(ready: Any) -> None:
    with pytest.raises(ToolError, match=r"no such package: nope. The packages are: semblend-core, and tools") as caught:
        run_tests(ready.clone, ["nope"], [], engines=True)
    assert caught.value.exit_code == 2
