from typing import Any

import pytest
import yaml

from semblend_tools.errors import ToolError
from semblend_tools.packages import discover
from semblend_tools.workflow_command import PATH, ci_workflow, render


def test_the_workflow_of_this_workspace_is_current(real_clone: Any) -> None:
    assert ci_workflow(real_clone, check=True) == 0


def test_every_package_has_its_row_in_the_matrix(real_clone: Any) -> None:
    packages = discover(real_clone)
    jobs = yaml.safe_load(render(packages))["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["package"] == [package.name for package in packages]
    assert "semblend-core" not in jobs["minimum-core"]["strategy"]["matrix"]["package"]
    assert jobs["nightly"]["strategy"]["matrix"]["package"] == [package.name for package in packages]
    assert jobs["nightly"]["steps"][-1]["run"].endswith("--all")
    assert {"changed", "lint", "wheels"} <= set(jobs)


def test_every_package_is_tested_with_every_python_it_admits(real_clone: Any) -> None:
    jobs = yaml.safe_load(render(discover(real_clone)))["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]


def test_every_release_of_an_engine_has_its_job(workspace: Any) -> None:
    workspace.add("semblend-core")
    engine = "[tool.hatch.envs.engine]\n[tool.semblend.engine]\nname = 'toy'\nrelease = '2.0'\n"
    older = "[tool.semblend.engine.older.'1.0']\ninstall = ['toy==1.0']\ntests = ['test_old.py']\n"
    workspace.add("semblend-alpha", settings=engine + older)
    workspace.add("semblend-beta", settings="[tool.semblend.engine]\nenvironment-of = 'semblend-alpha'\n")
    jobs = yaml.safe_load(render(workspace.packages))["jobs"]
    rows = [(row["package"], row["release"]) for row in jobs["engine"]["strategy"]["matrix"]["include"]]
    assert rows == [("semblend-alpha", "2.0"), ("semblend-alpha", "1.0"), ("semblend-beta", "2.0")]


def test_an_outdated_workflow_is_an_error_until_it_is_written(workspace: Any) -> None:
    workspace.add("semblend-core")
    with pytest.raises(ToolError, match=r"ci/github-workflow.yml is out of date"):
        ci_workflow(workspace.clone, check=True)
    assert ci_workflow(workspace.clone, check=False) == 0
    assert ci_workflow(workspace.clone, check=True) == 0
    assert "minimum-core:" not in (workspace.clone.root / PATH).read_text()
