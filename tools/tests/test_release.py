from typing import Any

import pytest

from semblend_tools.errors import ToolError
from semblend_tools.minimum_core import check_minimum_core, core_floor
from semblend_tools.release_command import release


@pytest.fixture
def core(workspace: Any) -> Any:
    workspace.add("semblend-core")
    workspace.commit()
    return workspace


def test_a_first_release_goes_out_as_it_stands(core: Any) -> None:
    assert release(core.clone, "semblend-core", dry_run=False) == 0
    assert core.git("tag") == "semblend-core-v0.1.0"
    assert core.git("status", "--porcelain") == ""
    assert core.git("log", "-1", "--format=%s") == "Release semblend-core 0.1.0"
    assert "## 0.1.0 (" in (core.clone.root / "packages/semblend-core/CHANGELOG.md").read_text()
    assert [path.name for path in (core.clone.root / "packages/semblend-core/changelog.d").iterdir()] == [".gitkeep"]


def test_the_next_release_counts_on_from_the_fragments(core: Any) -> None:
    release(core.clone, "semblend-core", dry_run=False)
    core.write("packages/semblend-core/changelog.d/bug.fixed.md", "A bug.")
    core.commit()
    release(core.clone, "semblend-core", dry_run=False)
    assert core.packages[0].version == "0.1.1"
    assert core.git("tag").splitlines() == ["semblend-core-v0.1.0", "semblend-core-v0.1.1"]


def test_a_dry_run_shows_everything_and_changes_nothing(core: Any, capsys: Any) -> None:
    before = core.git("rev-parse", "HEAD")
    core.write("packages/semblend-core/unrelated.txt", "A dirty tree does not matter to a dry run.")
    assert release(core.clone, "semblend-core", dry_run=True) == 0
    shown = capsys.readouterr().out
    for expected in (
        "semblend-core-v0.1.0",
        "## 0.1.0",
        "- Starts.",
        "never released",
        "changelog.d/start.added.md",
    ):
        assert expected in shown
    assert (core.git("rev-parse", "HEAD"), core.git("tag")) == (before, "")


def test_a_dirty_tree_is_refused(core: Any) -> None:
    core.write("packages/semblend-core/unrelated.txt", "x")
    with pytest.raises(ToolError, match="the working tree has changes"):
        release(core.clone, "semblend-core", dry_run=False)


def test_without_fragments_there_is_nothing_to_release(core: Any) -> None:
    release(core.clone, "semblend-core", dry_run=False)
    with pytest.raises(ToolError, match="holds no fragment"):
        release(core.clone, "semblend-core", dry_run=True)


def test_a_floor_that_does_not_exist_is_an_error_that_says_what_to_do(core: Any) -> None:
    core.add("semblend-alpha", ["semblend-core>=0.0.7"])
    with pytest.raises(ToolError, match=r"neither tagged \(semblend-core-v0.0.7\).*git fetch --tags.*pyproject.toml"):
        release(core.clone, "semblend-alpha", dry_run=True)


def test_a_package_must_state_its_floor(core: Any) -> None:
    core.add("semblend-alpha", ["semblend-core"])
    with pytest.raises(ToolError, match="without a lowest version"):
        core_floor(core.packages[1])


def test_the_oldest_admitted_core_is_installed_from_its_tag(with_our_hatch: Any) -> None:
    workspace = with_our_hatch
    workspace.add("semblend-core", version="0.1.0")
    workspace.commit()
    workspace.git("tag", "semblend-core-v0.1.0")
    workspace.add("semblend-core", version="0.2.0")
    workspace.add("semblend-alpha", ["semblend-core>=0.1.0"])
    workspace.write("packages/semblend-core/src/semblend_core/__init__.py", "new_in_0_2 = True\n")
    workspace.write(
        "packages/semblend-alpha/tests/test_it.py",
        "import semblend_core\n\n\ndef test_old():\n    assert not hasattr(semblend_core, 'new_in_0_2')\n",
    )
    workspace.commit()
    check_minimum_core(workspace.clone, workspace.packages[1])
