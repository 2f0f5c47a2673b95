"""`run.py pins`: note what the adapters rely upon inside their engines, for each release they are tested with."""

from collections.abc import Sequence
from pathlib import Path

from semblend_tools.clone import Clone
from semblend_tools.engines import releases_of
from semblend_tools.environments import Environment, engine_of, ensure, shared
from semblend_tools.errors import ToolError
from semblend_tools.packages import Package, discover, select
from semblend_tools.progress import say


def pins(clone: Clone, names: Sequence[str], sources: Path | None) -> int:
    """Write them from the installed releases, or from a folder such as an unpacked wheel."""
    declaring = [package for package in select(discover(clone), names) if _declaration(package).is_file()]
    if not declaring:
        raise ToolError("no package that was asked for declares what it relies upon (compat/relied.py)", 2)
    if sources is not None and len(declaring) != 1:
        raise ToolError("a folder of sources is of one engine: name its package", 2)
    worst = 0
    for package in declaring:
        worst = max(worst, *(_write(package, *place) for place in _places(clone, package, sources)))
    return worst


def _declaration(package: Package) -> Path:
    return package.source / "compat" / "relied.py"


def _places(clone: Clone, package: Package, sources: Path | None) -> list[tuple[Environment, list[object]]]:
    """Where sources lie: an environment to run in, and what it is told."""
    if sources is not None:
        return [(shared(clone, "test"), ["--sources", sources.resolve()])]
    found: list[tuple[Environment, list[object]]] = []
    for release in releases_of(package):
        environment = engine_of(clone, package, release)
        ensure(environment)
        found.append((environment, ["--sources", environment.release_folder] if release.is_older else []))
    return found


def _write(package: Package, environment: Environment, arguments: list[object]) -> int:
    say(f"pins of {package.name} in the environment `{environment.label}`")
    return environment.run(["-m", "semblend_core.pins", f"{package.module}.compat.relied", *arguments])
