"""`run.py release`: changelog, version, commit and tag of one package. Pushing and uploading stay by hand."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from semblend_tools.changelog import Fragment, insert_section, next_version, read_fragments, render_section
from semblend_tools.clone import Clone
from semblend_tools.errors import ToolError
from semblend_tools.git import git, is_dirty, tag_exists
from semblend_tools.minimum_core import check_minimum_core
from semblend_tools.packages import Package, discover, select
from semblend_tools.progress import say


@dataclass(frozen=True)
class Release:
    package: Package
    version: str
    section: str
    fragments: Sequence[Fragment]

    @property
    def tag(self) -> str:
        return tag_of(self.package, self.version)


def tag_of(package: Package, version: str) -> str:
    return f"{package.name}-v{version}"


def release(clone: Clone, name: str, *, dry_run: bool) -> int:
    package = select(discover(clone), [name])[0]
    if not dry_run and is_dirty(clone):
        raise ToolError("the working tree has changes: commit or stash them first (`git status` lists them)")
    planned = plan(clone, package, datetime.datetime.now(tz=datetime.UTC).date().isoformat())
    _show(clone, planned)
    check_minimum_core(clone, package)
    if dry_run:
        say("dry run: nothing was changed")
        return 0
    _apply(clone, planned)
    say(f"committed and tagged {planned.tag}; publish it with `git push origin HEAD {planned.tag}`")
    return 0


def plan(clone: Clone, package: Package, date: str) -> Release:
    """What the release would be. A version that no tag has yet is released as it stands."""
    fragments = read_fragments(package)
    if not fragments:
        raise ToolError(
            f"nothing to release: {clone.relative(package.path)}/changelog.d holds no fragment. "
            f"Every change that a user can notice needs one, for example changelog.d/short-name.fixed.md"
        )
    version = package.version
    if tag_exists(clone, tag_of(package, version)):
        version = next_version(version, fragments)
    planned = Release(package, version, render_section(version, date, fragments), fragments)
    if tag_exists(clone, planned.tag):
        raise ToolError(f"the tag {planned.tag} exists already")
    return planned


def _show(clone: Clone, planned: Release) -> None:
    package = planned.package
    print(f"package          {package.name}")
    print(f"current version  {package.version}{_how_current(planned)}")
    print(f"next version     {planned.version}")
    print(f"tag              {planned.tag}")
    print(f"commit           Release {package.name} {planned.version}")
    for path in _paths(clone, planned):
        print(f"                   {path}")
    print(f"\nCHANGELOG.md gains:\n\n{planned.section}", flush=True)


def _how_current(planned: Release) -> str:
    return " (never released: goes out as it stands)" if planned.version == planned.package.version else ""


def _paths(clone: Clone, planned: Release) -> list[str]:
    package = planned.package
    paths = [f"writes  {clone.relative(package.path / 'CHANGELOG.md')}"]
    if planned.version != package.version:
        paths.append(f"writes  {clone.relative(package.about_file)}")
    return paths + [f"deletes {clone.relative(fragment.path)}" for fragment in planned.fragments]


def _apply(clone: Clone, planned: Release) -> None:
    package = planned.package
    changelog = package.path / "CHANGELOG.md"
    changelog.write_text(insert_section(changelog.read_text(encoding="utf-8"), planned.section), encoding="utf-8")
    about = package.about_file.read_text()
    package.about_file.write_text(
        about.replace(f'__version__ = "{package.version}"', f'__version__ = "{planned.version}"')
    )
    for fragment in planned.fragments:
        fragment.path.unlink()
    # So that git keeps the folder once the last fragment is gone.
    (package.path / "changelog.d" / ".gitkeep").touch()
    git(clone, "add", "--all", "--", clone.relative(package.path))
    git(clone, "commit", "--message", f"Release {package.name} {planned.version}")
    git(clone, "tag", "--annotate", planned.tag, "--message", f"{package.name} {planned.version}")
