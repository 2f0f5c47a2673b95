"""The packages of the workspace, found by looking: every folder of packages/ with a pyproject.toml."""

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from semblend_tools.clone import Clone
from semblend_tools.errors import ToolError
from semblend_tools.requirements import Requirement, normalized, parse_requirement

CORE = "semblend-core"

_VERSION = re.compile(r'^__version__\s*=\s*"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Package:
    path: Path

    @cached_property
    def pyproject(self) -> dict[str, Any]:
        with (self.path / "pyproject.toml").open("rb") as handle:
            return tomllib.load(handle)

    @property
    def name(self) -> str:
        return normalized(self.pyproject["project"]["name"])

    @property
    def module(self) -> str:
        """The import name: the distribution's name with underscores, by the workspace's convention."""
        return self.name.replace("-", "_")

    @property
    def source(self) -> Path:
        return self.path / "src" / self.module

    @property
    def tests(self) -> Path:
        return self.path / "tests"

    @property
    def engine_tests(self) -> Path:
        """Tests that need a real engine; they run in an `engine` environment only."""
        return self.tests / "engine"

    @property
    def has_engine_environment(self) -> bool:
        return "engine" in self.pyproject.get("tool", {}).get("hatch", {}).get("envs", {})

    @property
    def settings(self) -> dict[str, Any]:
        """The package's `[tool.semblend]` table."""
        return dict(self.pyproject.get("tool", {}).get("semblend", {}))

    @property
    def test_system_packages(self) -> tuple[str, ...]:
        """Debian packages whose programs the tests use."""
        return tuple(self.settings.get("test-system-packages", ()))

    @cached_property
    def requirements(self) -> list[Requirement]:
        return [parse_requirement(text) for text in self.pyproject["project"].get("dependencies", [])]

    @cached_property
    def extras(self) -> dict[str, list[Requirement]]:
        optional = self.pyproject["project"].get("optional-dependencies", {})
        return {normalized(extra): [parse_requirement(text) for text in texts] for extra, texts in optional.items()}

    @property
    def about_file(self) -> Path:
        return self.path / str(self.pyproject["tool"]["hatch"]["version"]["path"])

    @property
    def version(self) -> str:
        match = _VERSION.search(self.about_file.read_text())
        if match is None:
            raise ToolError(f'{self.about_file} must set the version as `__version__ = "1.2.3"`')
        return match.group(1)

    def requires(self, other: "Package", *, with_extras: bool) -> bool:
        mentioned = list(self.requirements)
        if with_extras:
            mentioned += [requirement for extra in self.extras.values() for requirement in extra]
        return other.name != self.name and any(requirement.name == other.name for requirement in mentioned)


def discover(clone: Clone) -> list[Package]:
    """All packages, core first and the rest by name, so that what others build on is tried before them."""
    found = [Package(path.parent) for path in clone.packages.glob("*/pyproject.toml")]
    return sorted(found, key=lambda package: (package.name != CORE, package.name))


def refuse_leftover_folders(clone: Clone) -> None:
    """Switching branches leaves ignored files behind, and hatch wants a pyproject.toml in every member."""
    for folder in sorted(path for path in clone.packages.iterdir() if path.is_dir()):
        if not (folder / "pyproject.toml").is_file():
            name = clone.relative(folder)
            raise ToolError(f"{name} has no pyproject.toml: delete it if another branch left it (`rm -r {name}`)")


def select(packages: Sequence[Package], names: Iterable[str]) -> list[Package]:
    """The named packages, in workspace order; all of them when no name is given."""
    wanted = {normalized(name) for name in names}
    unknown = wanted - {package.name for package in packages}
    if unknown:
        known = ", ".join(package.name for package in packages)
        raise ToolError(f"no such package: {', '.join(sorted(unknown))}. The packages are: {known}", 2)
    return [package for package in packages if not wanted or package.name in wanted]


def with_required_siblings(packages: Sequence[Package], chosen: Iterable[Package]) -> list[Package]:
    """The chosen packages and all workspace packages they need at run time."""
    needed = list(chosen)
    for package in needed:  # grows while we walk it: dependencies of dependencies
        needed += [other for other in packages if package.requires(other, with_extras=False) and other not in needed]
    return [package for package in packages if package in needed]


def with_dependents(packages: Sequence[Package], touched: Iterable[Package]) -> list[Package]:
    """The touched packages and all workspace packages that could break with them."""
    affected = list(touched)
    for package in affected:
        affected += [other for other in packages if other.requires(package, with_extras=True) and other not in affected]
    return [package for package in packages if package in affected]
