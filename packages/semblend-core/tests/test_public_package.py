"""Where the public package ``semblend`` is installed beside ours, importing says so, whichever came last."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import semblend_core

OURS = Path(semblend_core.__file__).parents[1]


@pytest.fixture
def public(tmp_path: Path) -> Path:
    """A folder with what tells of it: a distribution of its name, and a module of ours' name."""
    information = tmp_path / "semblend-0.3.25.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: semblend\nVersion: 0.3.25\n")
    (information / "top_level.txt").write_text("semblend\nsemblend_core\nsemblend_kv_connector\n")
    module = tmp_path / "semblend_core"
    module.mkdir()
    (module / "__init__.py").write_text('__all__ = ["SemBlendPipeline"]\n')
    return tmp_path


def imported(name: str, *folders: Path) -> str:
    """What importing it with these folders first on the path ends in: the last line that Python says."""
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-c", f"import {name}"], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    return run.stderr.strip().splitlines()[-1] if run.returncode else ""


def test_ours_found_first_names_the_other_and_what_to_run(public: Path) -> None:
    said = imported("semblend_core", OURS, public)
    assert said.startswith("ImportError: the public package `semblend` 0.3.25 is installed beside semblend-core")
    assert "pip uninstall semblend" in said
    assert "--force-reinstall" in said


def test_another_package_of_that_name_disturbs_nobody(public: Path) -> None:
    (public / "semblend-0.3.25.dist-info" / "top_level.txt").write_text("semblend\n")
    assert imported("semblend_core", OURS, public) == ""


@pytest.mark.parametrize("name", ["semblend_vllm", "semblend_sglang", "semblend_dynamo", "sembench"])
def test_the_other_found_first_is_named_by_every_package_that_needs_ours(public: Path, name: str) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed here")
    said = imported(name, public)
    assert said.startswith("ImportError: ")
    assert "the public package `semblend`" in said
    assert "pip uninstall semblend" in said
