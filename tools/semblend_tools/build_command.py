"""`run.py build`: what users will install, built and tried the way they will install it."""

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from semblend_tools.bootstrap import tool_python
from semblend_tools.clone import Clone
from semblend_tools.distributions import Built, check_contents, check_same_files
from semblend_tools.errors import ToolError
from semblend_tools.packages import Package, discover, select, with_required_siblings
from semblend_tools.processes import answer_of, call_or_fail, output_of
from semblend_tools.progress import say, step
from semblend_tools.requirements import normalized
from semblend_tools.tables import print_table

# Printed by the clean environment's own Python, isolated from the folder we start it in.
_IMPORT = "import importlib, sys; print(importlib.import_module(sys.argv[1]).__file__)"

_UNSUPPORTED = re.compile(r" is not supported on this platform$")


def build(clone: Clone, names: Sequence[str]) -> int:
    packages = discover(clone)
    chosen = select(packages, names)
    built = {package.name: _build(clone, package) for package in with_required_siblings(packages, chosen)}
    rows = []
    for package in chosen:
        wheels = [built[other.name].wheel for other in with_required_siblings(packages, [package])]
        pulled_in = _install_alone(clone, package, wheels)
        say(f"{package.name} installs: {', '.join(pulled_in)}")
        rows.append((built[package.name].wheel.name, built[package.name].sdist.name, f"{len(pulled_in)}"))
    print()
    print_table(("wheel", "sdist", "distributions installed"), rows)
    return 0


def _build(clone: Clone, package: Package) -> Built:
    with step(f"building {package.name} {package.version}"):
        clone.dist.mkdir(exist_ok=True)
        stem = f"{package.module}-{package.version}"
        for stale in clone.dist.glob(f"{package.module}-*"):
            stale.unlink()
        # The pinned hatchling builds both from the working tree ...
        hatchling = [tool_python(clone), "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel"]
        call_or_fail(clone, [*hatchling, "-d", clone.dist], f"could not build {package.name}", cwd=package.path)
        built = Built(clone.dist / f"{stem}-py3-none-any.whl", clone.dist / f"{stem}.tar.gz")
        check_contents(built, package)
        # ... and pip, with the build requirements that the package declares, must agree from the sdist.
        with tempfile.TemporaryDirectory() as folder:
            pip = [tool_python(clone), "-m", "pip", "wheel", "--quiet", "--no-deps"]
            call_or_fail(
                clone,
                [*pip, "-w", folder, built.sdist],
                f"the sdist of {package.name} does not build a wheel",
            )
            check_same_files(built.wheel, next(Path(folder).glob("*.whl")))
    return built


def _install_alone(clone: Clone, package: Package, wheels: Sequence[Path]) -> list[str]:
    """Install one wheel into an empty environment, import it, and return all distributions that came."""
    with step(f"installing {package.name} by itself"), tempfile.TemporaryDirectory() as folder:
        python = make_clean_environment(clone, Path(folder) / "venv")
        # Siblings are given as files: the index may hold other versions of them, or other people's packages.
        command = [python, "-m", "pip", "install", "--quiet", *wheels]
        call_or_fail(clone, command, f"the wheel of {package.name} does not install")
        origin = output_of(clone, [python, "-I", "-c", _IMPORT, package.module], cwd=Path(folder)).strip()
        if not Path(origin).resolve().is_relative_to(Path(folder).resolve()):
            raise ToolError(f"importing {package.module} found {origin}, not the installed wheel")
        listing = json.loads(output_of(clone, [python, "-m", "pip", "list", "--format=json"]))
        _check_requirements(clone, python, package)
    seeds = {"pip", "setuptools", "wheel"}
    return [f"{entry['name']} {entry['version']}" for entry in listing if entry["name"] not in seeds]


def _check_requirements(clone: Clone, python: Path, package: Package) -> None:
    code, report = answer_of(clone, [python, "-m", "pip", "check"])
    if code == 0:
        return
    broken, foreign = sorted_complaints(report, [other.name for other in discover(clone)])
    for line in foreign:
        say(f"  pip says, and it is no requirement of ours: {line}")
    if broken or not foreign:
        lines = "\n".join(broken) or report
        raise ToolError(f"{package.name} leaves broken requirements:\n{lines}")


def sorted_complaints(report: str, ours: Sequence[str]) -> tuple[list[str], list[str]]:
    """The lines of `pip check`: broken requirements, and what is wrong with somebody else's wheel only.

    pip installs a wheel by the platform in its file's name and checks the one written inside. Where a publisher lets
    the two differ, as NVIDIA does on ARM, nothing that we require is missing.
    """
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    foreign = [line for line in lines if _UNSUPPORTED.search(line) and normalized(line.split()[0]) not in ours]
    return [line for line in lines if line not in foreign], foreign


def make_clean_environment(clone: Clone, folder: Path) -> Path:
    """An environment with nothing but pip in it; returns its Python."""
    command = [tool_python(clone), "-m", "virtualenv", "--quiet", "--no-setuptools", folder]
    call_or_fail(clone, command, "could not make an empty virtual environment")
    return folder / "bin" / "python"
