"""What a built wheel and sdist must hold."""

import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from semblend_tools.errors import ToolError
from semblend_tools.packages import Package


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path


def check_contents(built: Built, package: Package) -> None:
    for archive in (built.wheel, built.sdist):
        if not archive.is_file():
            raise ToolError(f"building {package.name} did not make {archive.name}")
    info = f"{package.module}-{package.version}.dist-info"
    _require(built.wheel, files_of_wheel(built.wheel), f"{package.module}/__init__.py")
    _require(built.wheel, files_of_wheel(built.wheel), f"{package.module}/py.typed")
    _require(built.wheel, files_of_wheel(built.wheel), f"{info}/licenses/LICENSE")
    with tarfile.open(built.sdist) as archive_of_sdist:
        names = set(archive_of_sdist.getnames())
    top = f"{package.module}-{package.version}"
    for wanted in ("pyproject.toml", "LICENSE", "README.md", f"src/{package.module}/py.typed"):
        _require(built.sdist, names, f"{top}/{wanted}")


def check_same_files(wheel: Path, from_sdist: Path) -> None:
    """An sdist that leaves a file out would build another wheel than the one we tested."""
    difference = files_of_wheel(wheel) ^ files_of_wheel(from_sdist)
    if difference:
        raise ToolError(f"the wheel built from the sdist differs from {wheel.name} in: {', '.join(sorted(difference))}")


def files_of_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def _require(archive: Path, names: set[str], wanted: str) -> None:
    if wanted not in names:
        raise ToolError(f"{archive.name} holds no {wanted}: check [tool.hatch.build] in its pyproject.toml")
