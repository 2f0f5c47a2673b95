"""A new adapter needs its own folder and nothing else: it is found, tested, built and put into CI's matrix.

The adapter below is made in a copy of this workspace. Its engine is a small real package that nothing else
uses, so that the copy shows both sides: the adapter without its engine, and the engine environment with it.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from semblend_tools.clone import Clone

NAME = "semblend-throwaway"
FOLDER = f"packages/{NAME}"

FILES = {
    "pyproject.toml": """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "semblend-throwaway"
dynamic = ["version"]
description = "An adapter for an engine that prints tables"
readme = "README.md"
license = "Apache-2.0"
license-files = ["LICENSE"]
requires-python = ">=3.11"
dependencies = ["semblend-core>=0.1.0"]

[project.optional-dependencies]
engine = ["tabulate>=0.9"]
dev = ["pytest>=8"]

[tool.hatch.version]
path = "src/semblend_throwaway/__about__.py"

[tool.hatch.build.targets.wheel]
packages = ["src/semblend_throwaway"]

[tool.hatch.envs.engine]
features = ["engine", "dev"]

[tool.hatch.envs.engine.env-vars]
THROWAWAY_ENGINE = "real"
""",
    "README.md": "# semblend-throwaway\n",
    "CHANGELOG.md": "# Changelog\n\n<!-- Entries are collected from changelog.d/ at release. -->\n",
    "changelog.d/start.added.md": "The first release.\n",
    "LICENSE": "Apache-2.0\n",
    "src/semblend_throwaway/py.typed": "",
    "src/semblend_throwaway/__about__.py": '__version__ = "0.1.0"\n',
    "src/semblend_throwaway/__init__.py": """\
from semblend_throwaway.__about__ import __version__
from semblend_throwaway.adapter import engine_version

__all__ = ["__version__", "engine_version"]
""",
    "src/semblend_throwaway/adapter.py": """\
import semblend_core


def engine_version() -> str:
    try:
        import tabulate
    except ImportError:
        raise ImportError(
            "semblend-throwaway needs its engine: pip install 'semblend-throwaway[engine]'"
        ) from None
    return f"{tabulate.__version__} beside core {semblend_core.__version__}"
""",
    "tests/test_adapter.py": """\
import pytest
import semblend_throwaway


def test_without_the_engine_the_error_names_the_extra():
    with pytest.raises(ImportError, match=r"pip install 'semblend-throwaway\\[engine\\]'"):
        semblend_throwaway.engine_version()
""",
    "tests/engine/test_engine.py": """\
import os
from pathlib import Path

import semblend_core
import semblend_throwaway


def test_with_the_engine_it_works():
    assert semblend_throwaway.engine_version().startswith("0.")
    assert os.environ["THROWAWAY_ENGINE"] == "real"


def test_core_is_the_one_of_this_clone():
    clone = Path(__file__).parents[4]
    assert Path(semblend_core.__file__).is_relative_to(clone / "packages" / "semblend-core" / "src")
""",
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This workspace as git would see it, committed, with the adapter added on top."""
    ours = Clone(Path(__file__).resolve().parents[2])
    root = tmp_path_factory.mktemp("workspace") / "clone"
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listing, cwd=ours.root, text=True).splitlines():
        if (ours.root / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ours.root / name, root / name)
    take_over_environments(ours, Clone(root))
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "The workspace")
    for name, text in FILES.items():
        (root / FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (root / FOLDER / name).write_text(text)
    return root


def take_over_environments(ours: Clone, copy: Clone) -> None:
    """Start from the environments that run this test, so that what is tried is adding a package to them.

    Installing all packages afresh would only repeat what this run has already done, at a minute's cost.
    """
    stamp = ours.tools / "stamps" / "test.json"
    if not stamp.is_file():  # pytest was started by hand: the copy makes its own
        return
    copy.tools.mkdir()
    (copy.tools / "hatch-venv").symlink_to(ours.tools / "hatch-venv")
    (copy.tools / "stamps").mkdir()
    (copy.tools / "stamps" / "test.json").write_text(stamp.read_text().replace(str(ours.root), str(copy.root)))
    environment = Path(json.loads(stamp.read_text())["path"])
    # Packages that are tested at the same time write compiled files there, and rename them.
    without_compiled = shutil.ignore_patterns("__pycache__")
    shutil.copytree(environment, copy.root / environment.relative_to(ours.root), symlinks=True, ignore=without_compiled)


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.invalid"]
    return subprocess.check_output(["git", *identity, *arguments], cwd=root, text=True)


@pytest.fixture(scope="module")
def run(copy: Path) -> Callable[..., str]:
    """tools/run.py of the copy; returns what it printed, and fails with it."""

    def run_tool(*arguments: str) -> str:
        command = [sys.executable, "tools/run.py", *arguments]
        done = subprocess.run(
            command,
            cwd=copy,
            env=dict(os.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run_tool


def test_it_is_tested_without_its_engine_and_with_it(run: Callable[..., str]) -> None:
    output = run("test", NAME)
    lines = output.splitlines()
    assert lines[-1] == "3 passed, 0 failed", output
    assert any(line.split()[:3] == [NAME, "test", "passed"] for line in lines), output
    assert any(line.split()[:3] == [NAME, f"{NAME}:engine", "passed"] for line in lines), output


def test_it_is_built_and_installs_with_core_and_without_its_engine(run: Callable[..., str], copy: Path) -> None:
    output = run("build", NAME)
    installs = next(line for line in output.splitlines() if f"{NAME} installs:" in line)
    assert "semblend-core 0." in installs
    assert "tabulate" not in installs
    assert (copy / "dist" / "semblend_throwaway-0.1.0-py3-none-any.whl").is_file()


def test_it_is_in_the_matrix(run: Callable[..., str], copy: Path) -> None:
    assert json.loads(run("changed", "--since", "HEAD", "--json"))["packages"] == [NAME]
    run("ci-workflow")
    jobs = yaml.safe_load((copy / "ci" / "github-workflow.yml").read_text())["jobs"]
    for job in ("test", "minimum-core", "nightly"):
        assert NAME in jobs[job]["strategy"]["matrix"]["package"]
    assert {"package": NAME, "release": "own"} in jobs["engine"]["strategy"]["matrix"]["include"]


def test_nothing_else_had_to_change(run: Callable[..., str], copy: Path) -> None:
    run("ci-workflow")
    touched = {line[3:] for line in git(copy, "status", "--porcelain").splitlines()}
    assert touched == {f"{FOLDER}/", "ci/github-workflow.yml"}
