import json
from typing import Any

import pytest

from semblend_tools.changed_command import changed
from semblend_tools.errors import ToolError


@pytest.fixture
def history(workspace: Any) -> Any:
    workspace.add("semblend-core")
    workspace.add("semblend-alpha", ["semblend-core>=0.1.0"])
    workspace.add("semblend-apart")
    workspace.commit()
    return workspace


def affected(workspace: Any, capsys: Any, since: str | None = "HEAD") -> list[str]:
    capsys.readouterr()
    assert changed(workspace.clone, since, as_json=True) == 0
    packages: list[str] = json.loads(capsys.readouterr().out)["packages"]
    return packages


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("packages/semblend-alpha/src/semblend_alpha/x.py", ["semblend-alpha"]),
        ("packages/semblend-core/README.md", ["semblend-core", "semblend-alpha"]),
        ("docs/contributing.md", []),
        ("README.md", []),
        ("hatch.toml", ["semblend-core", "semblend-alpha", "semblend-apart"]),
        ("tools/run.py", ["semblend-core", "semblend-alpha", "semblend-apart"]),
        (".ci/run", ["semblend-core", "semblend-alpha", "semblend-apart"]),
    ],
)
def test_a_file_affects_its_package_and_the_dependents(
    history: Any, capsys: Any, file: str, expected: list[str]
) -> None:
    history.write(file, "changed\n")
    assert affected(history, capsys) == expected
    history.commit()
    assert affected(history, capsys, "HEAD~1") == expected


def test_a_page_that_a_package_tests_affects_it(history: Any, capsys: Any) -> None:
    history.write("packages/semblend-apart/tests/test_page.py", "PAGE = 'docs/settings.md'\n")
    history.commit()
    history.write("docs/settings.md", "changed\n")
    assert affected(history, capsys) == ["semblend-apart"]


def test_a_branch_is_compared_with_where_it_left_main(history: Any, capsys: Any) -> None:
    history.git("update-ref", "refs/remotes/origin/main", "HEAD")
    for package in ("semblend-alpha", "semblend-apart"):
        history.write(f"packages/{package}/x.py")
        history.commit()
    assert affected(history, capsys, None) == ["semblend-alpha", "semblend-apart"]


def test_without_a_remote_the_last_commit_is_the_change(history: Any, capsys: Any) -> None:
    history.write("packages/semblend-apart/x.py")
    history.commit()
    assert affected(history, capsys, None) == ["semblend-apart"]


def test_without_history_nothing_is_ruled_out(history: Any, capsys: Any) -> None:
    assert affected(history, capsys, None) == ["semblend-core", "semblend-alpha", "semblend-apart"]


def test_an_unknown_revision_is_an_error(history: Any) -> None:
    with pytest.raises(ToolError, match="no revision 'nowhere'"):
        changed(history.clone, "nowhere", as_json=False)
