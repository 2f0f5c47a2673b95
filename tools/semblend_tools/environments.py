"""The environments that hatch makes: the shared ones of the workspace, and one per engine."""

import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semblend_tools.bootstrap import STAMP, interpreter_identity, tool_python
from semblend_tools.clone import Clone
from semblend_tools.engines import Release
from semblend_tools.errors import ToolError
from semblend_tools.installing import uv, uv_settings
from semblend_tools.locking import environments_locked
from semblend_tools.packages import Package, discover, refuse_leftover_folders
from semblend_tools.processes import Ended, call, call_keeping_tail, call_or_fail, output_of
from semblend_tools.progress import step


@dataclass(frozen=True)
class Environment:
    """One hatch environment. `owner` is the package that declares it; None for those of hatch.toml.

    With an older `release` of the engine, that one is found first, in a folder inside the environment.
    """

    clone: Clone
    name: str
    owner: Package | None = None
    release: Release | None = None

    @property
    def label(self) -> str:
        """For people."""
        older = f" {self.release.version}" if self.release and self.release.is_older else ""
        return f"{self._name_in_clone}{older}"

    @property
    def _name_in_clone(self) -> str:
        return f"{self.owner.name}:{self.name}" if self.owner else self.name

    @property
    def is_shared(self) -> bool:
        return self.owner is None

    @property
    def project(self) -> Path:
        return self.owner.path if self.owner else self.clone.root

    @property
    def stamp(self) -> Path:
        return self.clone.tools / "stamps" / f"{self._name_in_clone.replace(':', '.')}.json"

    def hatch(self, *arguments: object) -> list[object]:
        return [tool_python(self.clone), "-m", "hatch", *arguments]

    @property
    def python(self) -> Path:
        """The interpreter inside; only valid after `ensure`."""
        stamp = _stamped(self)
        if stamp is None:
            raise ToolError(f"the environment `{self.label}` is gone: was .tools deleted during the run?")
        return Path(str(stamp["path"])) / "bin" / "python"

    def variables(self) -> dict[str, str]:
        """What activating the environment would set, and the `env-vars` its table declares."""
        folder = self.python.parent.parent
        declared = self.table().get("env-vars", {})
        variables = {
            "VIRTUAL_ENV": str(folder),
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        } | {name: value.replace("{root}", str(self.project)) for name, value in declared.items()}
        if self.release:
            # An engine that is missing, or another release than the one meant, must not pass for a tested one.
            variables["SEMBLEND_REQUIRE_ENGINES"] = f"{self.release.engine}=={self.release.version}"
            if self.release.is_older:
                found_first = [str(self.release_folder), variables.get("PYTHONPATH", "")]
                variables["PYTHONPATH"] = os.pathsep.join(filter(None, found_first))
        return variables

    @property
    def release_folder(self) -> Path:
        assert self.release is not None
        return self.python.parent.parent / "releases" / self.release.version

    def table(self) -> dict[str, Any]:
        """The environment's own declaration."""
        if self.owner:
            envs = self.owner.pyproject["tool"]["hatch"]["envs"]
        else:
            envs = tomllib.loads((self.clone.root / "hatch.toml").read_text())["envs"]
        return dict(envs[self.name])

    def run(self, arguments: Sequence[object], *, cwd: Path | None = None) -> int:
        """Run the environment's Python; the environment is made or brought up to date first.

        Not through `hatch run`, which would expand braces in the arguments (a JSON setting, a pytest id).
        """
        ensure(self)
        return call(self.clone, [self.python, *arguments], cwd=cwd, extra_environment=self.variables())

    def run_keeping_tail(self, arguments: Sequence[object]) -> Ended:
        """The same; tells more of how it ended."""
        ensure(self)
        return call_keeping_tail(self.clone, [self.python, *arguments], extra_environment=self.variables())

    def run_program(self, name: str, arguments: Sequence[object]) -> int:
        """Run a console script that some package installs into the environment."""
        ensure(self)
        program = self.python.parent / name
        if not program.exists():
            raise ToolError(f"the environment `{self.label}` has no program `{name}`: no package declares it")
        return call(self.clone, [program, *arguments], extra_environment=self.variables())


def shared(clone: Clone, name: str) -> Environment:
    return Environment(clone, name)


def engine_of(clone: Clone, owner: Package, release: Release | None = None) -> Environment:
    return Environment(clone, "engine", owner, release)


def ensure(environment: Environment) -> None:
    """Make the environment match the pyprojects. Costs a few file reads when nothing changed."""
    _ensure_environment(environment)
    if environment.release and environment.release.is_older:
        _ensure_release(environment, environment.release)


def _ensure_release(environment: Environment, release: Release) -> None:
    """The older release alone: it shares the environment's other packages where they fit."""
    folder, wanted = environment.release_folder, json.dumps(release.install)
    stamp = folder / STAMP
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    with environments_locked(environment.clone), step(f"adding {release.engine} {release.version}"):
        if folder.exists():
            shutil.rmtree(folder)
        install = [*_uv_install(environment.clone), "--python", environment.python, "--no-deps", "--target", folder]
        failure = f"could not install {release.engine} {release.version} beside the environment's own release"
        call_or_fail(
            environment.clone,
            [*install, *release.install],
            failure,
            extra_environment=uv_settings(environment.clone),
        )
        stamp.write_text(wanted)


def _ensure_environment(environment: Environment) -> None:
    clone = environment.clone
    tool_python(clone)
    wanted = _fingerprint(environment)
    if _matches(environment, wanted):
        return
    with environments_locked(clone):
        if _matches(environment, wanted):
            return
        before = _stamped(environment) or {}
        # Without a stamp an interruption is noticed: the next run starts the environment over.
        environment.stamp.unlink(missing_ok=True)
        existing = Path(before["path"]) if before.get("identity") == wanted["identity"] else None
        if existing is None:
            call(clone, environment.hatch("env", "remove", environment.name), cwd=environment.project)
        with step(f"{'updating' if existing else 'creating'} the environment `{environment._name_in_clone}`"):
            _install(environment, existing)
        found = output_of(clone, environment.hatch("env", "find", environment.name), cwd=environment.project)
        environment.stamp.parent.mkdir(parents=True, exist_ok=True)
        environment.stamp.write_text(json.dumps(wanted | {"path": found.strip()}))


def _matches(environment: Environment, wanted: dict[str, Any]) -> bool:
    stamp = _stamped(environment) or {}
    return all(stamp.get(key) == value for key, value in wanted.items())


def _stamped(environment: Environment) -> dict[str, Any] | None:
    """What the last complete run noted; None when there was none or its environment has been deleted."""
    try:
        stamp: dict[str, Any] = json.loads(environment.stamp.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return stamp if (Path(stamp["path"]) / "bin" / "python").exists() else None


def _fingerprint(environment: Environment) -> dict[str, Any]:
    digest = hashlib.sha256()
    for path in _files_that_decide(environment):
        digest.update(str(path).encode() + b"\0" + path.read_bytes() + b"\0")
    return {"identity": interpreter_identity(environment.clone), "inputs": digest.hexdigest()}


def _files_that_decide(environment: Environment) -> list[Path]:
    packages = discover(environment.clone)
    if environment.owner:
        packages = [*_siblings(environment, environment.owner), environment.owner]
    elif not _features(environment):
        packages = []
    inside = [path for package in packages for path in (package.path / "pyproject.toml", package.about_file)]
    return inside if environment.owner else [environment.clone.root / "hatch.toml", *inside]


def _uv_install(clone: Clone) -> list[object]:
    return [uv(clone), "pip", "install", "--quiet"]


def _install(environment: Environment, existing: Path | None) -> None:
    if environment.owner:
        _install_engine(environment, environment.owner)
    else:
        _install_shared(environment, existing)


def _install_shared(environment: Environment, existing: Path | None) -> None:
    """hatch makes the environment and installs the workspace; one call of uv settles what hatch leaves open.

    hatch skips a member that is already there, so it misses a new entry point, and it skips a requirement
    on a sibling's extra (`semblend-core[gpu]`). The environment holds hatchling, so uv need not fetch it
    for every member: in an environment that exists, uv goes first and leaves little for hatch to do.
    """
    clone = environment.clone
    refuse_leftover_folders(clone)
    failure = f"could not prepare the environment `{environment.label}` that hatch.toml describes"
    inside = environment.hatch("-e", environment.name, "run")
    editable = [part for member in _members_with_extras(environment) for part in ("--editable", member)]
    # A member's version lies in another file than the one that uv looks at, so each is installed anew.
    anew = [part for package in discover(clone) for part in ("--reinstall-package", package.name)]
    install = [*_uv_install(clone), "--no-build-isolation", *anew, *editable]
    settings = uv_settings(clone)
    if existing and editable:
        python = existing / "bin" / "python"
        call_or_fail(clone, [*install, "--python", python], failure, extra_environment=settings)
    call_or_fail(clone, [*inside, "python", "-c", "pass"], failure, extra_environment=settings)
    if not existing and editable:
        call_or_fail(clone, [*inside, *install], failure, extra_environment=settings)


def _members_with_extras(environment: Environment) -> list[str]:
    """`packages/x[dev]` for every package of the workspace, with those of the environment's extras it has."""
    features = _features(environment)
    members = []
    for package in discover(environment.clone) if features else []:
        extras = ",".join(feature for feature in features if feature in package.extras)
        members.append(f"{package.path}[{extras}]" if extras else str(package.path))
    return members


def _features(environment: Environment) -> list[str]:
    """The extras that hatch.toml asks of every member; empty for an environment without the workspace."""
    declared = environment.table().get("workspace", {}).get("members", [])
    return [feature for member in declared for feature in member["features"]]


def _siblings(environment: Environment, owner: Package) -> list[Package]:
    return [package for package in discover(environment.clone) if owner.requires(package, with_extras=True)]


def _install_engine(environment: Environment, owner: Package) -> None:
    """The package declares the engine; its siblings come from this clone, whatever the index holds."""
    clone = environment.clone
    siblings = _siblings(environment, owner)
    constraints = clone.tools / "stamps" / f"{owner.name}.constraints.txt"
    constraints.parent.mkdir(parents=True, exist_ok=True)
    constraints.write_text("".join(f"{package.name} @ {package.path.as_uri()}\n" for package in siblings))
    settings = uv_settings(clone)
    failure = f"could not prepare the environment `engine` of {clone.relative(owner.path)}/pyproject.toml"
    inside = environment.hatch("-e", environment.name, "run")
    call_or_fail(
        clone,
        [*inside, "python", "-c", "pass"],
        failure,
        cwd=owner.path,
        # A package may leave it to hatch what installs.
        extra_environment={**settings, "UV_CONSTRAINT": str(constraints), "PIP_CONSTRAINT": str(constraints)},
    )
    # A constraint installs a copy; the editable install on top lets a change in core be tested at once.
    members = [*siblings, owner]
    editable = [part for package in members for part in ("--editable", str(package.path))]
    anew = [part for package in members for part in ("--reinstall-package", package.name)]
    install = [*_uv_install(clone), "--no-deps", *anew, *editable]
    call_or_fail(clone, [*inside, *install], failure, cwd=owner.path, extra_environment=settings)
    scripts = environment.table().get("scripts", {})
    if "prepare" in scripts:
        call_or_fail(clone, [*inside, "prepare"], failure, cwd=owner.path)
