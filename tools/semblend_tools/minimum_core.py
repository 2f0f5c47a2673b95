"""`run.py minimum-core`: does a package really work with the oldest core that its pyproject.toml admits?"""

import io
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from semblend_tools.build_command import make_clean_environment
from semblend_tools.clone import Clone
from semblend_tools.errors import ToolError
from semblend_tools.git import tag_exists
from semblend_tools.packages import CORE, Package, discover, select
from semblend_tools.processes import call, call_or_fail, output_of
from semblend_tools.progress import say, step
from semblend_tools.test_record import LEFT_OUT, NO_TESTS_COLLECTED

_CORE_VERSION = f"from importlib.metadata import version; print(version({CORE!r}))"


def minimum_core(clone: Clone, names: Sequence[str]) -> int:
    for package in select(discover(clone), names):
        check_minimum_core(clone, package)
    return 0


def check_minimum_core(clone: Clone, package: Package) -> None:
    floor = core_floor(package)
    if floor is None:
        say(f"{package.name} does not depend on {CORE}: no minimum to check")
        return
    with tempfile.TemporaryDirectory() as folder:
        core = _source_of_core(clone, package, floor, Path(folder) / "core")
        with step(f"testing {package.name} against {CORE} {floor}, the oldest it admits"):
            _install_and_test(clone, package, core, floor, Path(folder))


def core_floor(package: Package) -> str | None:
    """The lowest core version admitted; None when the package does not depend on core."""
    for requirement in package.requirements:
        if requirement.name == CORE:
            if requirement.floor is None:
                raise ToolError(
                    f"{package.name} requires {CORE} without a lowest version: "
                    f'write "{CORE}>=X.Y.Z" in `dependencies` of its pyproject.toml'
                )
            return requirement.floor
    return None


def _source_of_core(clone: Clone, package: Package, floor: str, folder: Path) -> Path:
    tag = f"{CORE}-v{floor}"
    if tag_exists(clone, tag):
        _extract(clone, tag, f"packages/{CORE}", folder)
        return folder / "packages" / CORE
    workspace = next(other for other in discover(clone) if other.name == CORE)
    if workspace.version == floor:
        return workspace.path
    raise ToolError(
        f"{package.name} admits {CORE} {floor}, which is neither tagged ({tag}) nor the workspace's version "
        f"({workspace.version}). Fetch the tags (`git fetch --tags`), or set the floor in "
        f"{clone.relative(package.path)}/pyproject.toml to a version that exists"
    )


def _extract(clone: Clone, revision: str, path: str, folder: Path) -> None:
    command = ["git", "archive", "--format=zip", revision, path]
    archive = subprocess.run(command, cwd=clone.root, capture_output=True, check=True).stdout
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        files.extractall(folder)


def _install_and_test(clone: Clone, package: Package, core: Path, floor: str, folder: Path) -> None:
    python = make_clean_environment(clone, folder / "venv")
    extra = "[dev]" if "dev" in package.extras else ""
    # A constraint also holds when the dev extra asks for `semblend-core[something]`.
    constraints = folder / "constraints.txt"
    constraints.write_text(f"{CORE} @ {core.as_uri()}\n")
    pip = [python, "-m", "pip", "install", "--quiet", "-c", constraints]
    call_or_fail(
        clone,
        [*pip, f"{package.path}{extra}", "pytest"],
        f"{package.name} does not install with {CORE} {floor}",
    )
    installed = output_of(clone, [python, "-c", _CORE_VERSION]).strip()
    if installed != floor:
        raise ToolError(f"wanted {CORE} {floor} in the environment, and pip installed {installed}")
    call_or_fail(
        clone,
        [python, "-I", "-c", f"import {package.module}"],
        f"{package.module} does not import with {CORE} {floor}",
    )
    tests = ["-m", "pytest", "-q", "-c", clone.root / "pyproject.toml", package.tests]
    code = call(clone, [python, *tests, f"--ignore={package.engine_tests}", "-m", LEFT_OUT])
    if code == NO_TESTS_COLLECTED:
        say(f"{package.name} has no tests that run here: only its import was tried")
    elif code:
        raise ToolError(f"the tests of {package.name} fail with {CORE} {floor}", code)
