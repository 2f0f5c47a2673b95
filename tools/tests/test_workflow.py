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
    assert {"changed", "lint", "wheels"} <= set(jobs)


def test_an_outdated_workflow_is_an_error_until_it_is_written(workspace: Any) -> None:
    workspace.add("semblend-core")
    with pytest.raises(ToolError, match=r"ci/github-workflow.yml is out of date"):
        ci_workflow(workspace.clone, check=True)
    assert ci_workflow(workspace.clone, check=False) == 0
    assert ci_workflow(workspace.clone, check=True) == 0
    assert "minimum-core:" not in (workspace.clone.root / PATH).read_text()
