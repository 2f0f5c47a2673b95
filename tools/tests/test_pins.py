"""`run.py pins` finds the adapters that declare what they rely upon."""

from pathlib import Path
from typing import Any

import pytest

from semblend_tools.errors import ToolError
from semblend_tools.pins_command import pins


def test_it_says_where_a_declaration_is_expected(workspace: Any) -> None:
    workspace.add("semblend-core")
    with pytest.raises(ToolError, match=r"compat/relied\.py"):
        pins(workspace.clone, [], None)


def test_a_folder_of_sources_is_of_one_engine(workspace: Any, tmp_path: Path) -> None:
    for name in ("semblend-one", "semblend-two"):
        workspace.add(name)
        workspace.write(f"packages/{name}/src/{name.replace('-', '_')}/compat/relied.py")
    with pytest.raises(ToolError, match="name its package"):
        pins(workspace.clone, [], tmp_path)
