"""A small workspace to try the tools on, and the clone these tests are part of."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from semblend_tools.changelog import MARKER
from semblend_tools.clone import Clone, this_clone
from semblend_tools.packages import Package, discover


class Workspace:
    """Writes packages like those of the real workspace, only smaller."""

    def __init__(self, root: Path) -> None:
        self.clone = Clone(root)
        (root / "packages").mkdir(parents=True)
        (root / "ci").mkdir()
        (root / "hatch.toml").write_text("[envs.test]\n[envs.bench]\n")
        (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")

    @property
    def packages(self) -> list[Package]:
        return discover(self.clone)

    def write(self, path: str, text: str = "") -> Path:
        file = self.clone.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def add(self, name: str, requires: Sequence[str] = (), version: str = "0.1.0", settings: str = "") -> Path:
        """A package that builds, with one test that passes and one changelog fragment."""
        folder, module = f"packages/{name}", name.replace("-", "_")
        self.write(f"{folder}/src/{module}/__init__.py", f'"""{name}."""\n')
        self.write(f"{folder}/src/{module}/__about__.py", f'__version__ = "{version}"\n')
        self.write(f"{folder}/src/{module}/py.typed")
        self.write(f"{folder}/README.md", f"# {name}\n")
        self.write(f"{folder}/LICENSE", "A licence.\n")
        self.write(f"{folder}/CHANGELOG.md", f"# Changelog\n\n{MARKER}\n")
        self.write(f"{folder}/changelog.d/start.added.md", "Starts.\n")
        self.write(f"{folder}/tests/test_it.py", "def test_it():\n    assert True\n")
        self.write(f"{folder}/pyproject.toml", _pyproject(name, module, requires, settings))
        return self.clone.root / folder

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=Test", "-c", "user.email=test@example.invalid"]
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=self.clone.root, capture_output=True, text=True, check=True).stdout.strip()

    def commit(self, message: str = "Change") -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD")

    def pretend_environment(self, name: str) -> None:
        """Let the environment `name` be the one that runs these tests: nothing is installed."""
        self.write(f".tools/stamps/{name}.json", f'{{"path": "{sys.prefix}"}}')


def _pyproject(name: str, module: str, requires: Sequence[str], settings: str) -> str:
    dependencies = ", ".join(f'"{requirement}"' for requirement in requires)
    return f"""\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "{name}"
dynamic = ["version"]
readme = "README.md"
license = "Apache-2.0"
license-files = ["LICENSE"]
requires-python = ">=3.11"
dependencies = [{dependencies}]

[tool.hatch.version]
path = "src/{module}/__about__.py"

[tool.hatch.build.targets.wheel]
packages = ["src/{module}"]

{settings}
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    made = Workspace(tmp_path / "clone")
    made.write(".gitignore", ".tools/\n__pycache__/\n")
    made.git("init", "--quiet", "--initial-branch=main")
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "Test")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "test@example.invalid")
    return made


@pytest.fixture
def real_clone() -> Clone:
    return this_clone()


@pytest.fixture
def with_our_hatch(workspace: Workspace, real_clone: Clone) -> Workspace:
    """The small workspace, using this clone's tool environment instead of installing one."""
    share_tool_environment(real_clone, workspace.clone)
    return workspace


def share_tool_environment(ours: Clone, other: Clone) -> None:
    if (ours.tools / "hatch-venv").is_dir():
        other.tools.mkdir(exist_ok=True)
        (other.tools / "hatch-venv").symlink_to(ours.tools / "hatch-venv")
