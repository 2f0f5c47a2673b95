"""`run.py build`: what users will install, built and tried the way they will install it."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from semblend_tools.bootstrap import tool_python
from semblend_tools.clone import Clone
from semblend_tools.distributions import Built, check_contents, check_same_files
from semblend_tools.errors import ToolError
from semblend_tools.packages import Package, discover, select, with_required_siblings
from semblend_tools.processes import call_or_fail, output_of
from semblend_tools.progress import say, step
from semblend_tools.tables import print_table

# Printed by the clean environment's own Python, isolated from the folder we start it in.
_IMPORT = "import importlib, sys; print(importlib.import_module(sys.argv[1]).__file__)"


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
        call_or_fail(clone, [python, "-m", "pip", "check"], f"{package.name} leaves broken requirements")
    seeds = {"pip", "setuptools", "wheel"}
    return [f"{entry['name']} {entry['version']}" for entry in listing if entry["name"] not in seeds]


def make_clean_environment(clone: Clone, folder: Path) -> Path:
    """An environment with nothing but pip in it; returns its Python."""
    command = [tool_python(clone), "-m", "virtualenv", "--quiet", "--no-setuptools", folder]
    call_or_fail(clone, command, "could not make an empty virtual environment")
    return folder / "bin" / "python"
