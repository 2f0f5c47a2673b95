from typing import Any

import pytest

from semblend_tools.errors import ToolError
from semblend_tools.packages import (
    discover,
    refuse_leftover_folders,
    select,
    with_dependents,
    with_required_siblings,
)
from semblend_tools.requirements import parse_requirement


def names(packages: list[Any]) -> list[str]:
    return [package.name for package in packages]


def test_a_folder_with_a_pyproject_is_a_package_and_core_comes_first(workspace: Any) -> None:
    workspace.add("semblend-alpha", ["semblend-core>=0.1.0"])
    workspace.add("semblend-core")
    assert names(workspace.packages) == ["semblend-core", "semblend-alpha"]


def test_a_folder_left_over_from_another_branch_is_no_package_and_is_to_be_deleted(workspace: Any) -> None:
    workspace.add("semblend-core")
    workspace.write("packages/semblend-gone/src/x.pyc")
    assert names(workspace.packages) == ["semblend-core"]
    with pytest.raises(ToolError, match=r"rm -r packages/semblend-gone"):
        refuse_leftover_folders(workspace.clone)


def test_an_unknown_name_lists_the_known_ones(workspace: Any) -> None:
    workspace.add("semblend-core")
    workspace.add("semblend-alpha")
    with pytest.raises(ToolError, match=r"no such package: nope. The packages are: semblend-core, semblend-alpha"):
        select(workspace.packages, ["nope"])


def test_dependents_and_requirements_are_followed_to_the_end(workspace: Any) -> None:
    workspace.add("semblend-core")
    workspace.add("semblend-middle", ["semblend-core>=0.1.0"])
    workspace.add("semblend-top", ["semblend-middle"])
    workspace.add("semblend-apart")
    packages = workspace.packages
    core, top = select(packages, ["semblend-core"]), select(packages, ["semblend-top"])
    assert names(with_dependents(packages, core)) == ["semblend-core", "semblend-middle", "semblend-top"]
    assert names(with_required_siblings(packages, top)) == [
        "semblend-core",
        "semblend-middle",
        "semblend-top",
    ]


@pytest.mark.parametrize(
    ("text", "name", "extras", "floor"),
    [
        ("numpy", "numpy", (), None),
        ("Semblend_Core[gpu, metrics]>=0.2.1,<1", "semblend-core", ("gpu", "metrics"), "0.2.1"),
        ("click <9, >= 8.1 ; python_version > '3'", "click", (), "8.1"),
        ("torch==2.13.0", "torch", (), "2.13.0"),
    ],
)
def test_requirements_are_read(text: str, name: str, extras: tuple[str, ...], floor: str | None) -> None:
    requirement = parse_requirement(text)
    assert (requirement.name, requirement.extras, requirement.floor) == (name, extras, floor)


def test_every_package_of_this_workspace_has_what_the_tools_need(real_clone: Any) -> None:
    for package in discover(real_clone):
        assert package.version
        assert package.source.is_dir(), f"{package.name} must have its module at {package.source}"
        assert (package.path / "changelog.d").is_dir()
