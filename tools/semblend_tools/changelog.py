"""Changelog fragments: one small file per change, collected into CHANGELOG.md at release.

A fragment is `changelog.d/NAME.KIND.md`, where KIND is one of added, changed, fixed and removed, and its text
is what a user of the package should read. Files of their own never conflict between branches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from semblend_tools.errors import ToolError
from semblend_tools.packages import Package

KINDS = ("removed", "changed", "added", "fixed")  # the order of a release's section: what breaks comes first
MARKER = "<!-- Entries are collected from changelog.d/ at release. -->"


@dataclass(frozen=True)
class Fragment:
    path: Path
    kind: str
    text: str


def read_fragments(package: Package) -> list[Fragment]:
    folder = package.path / "changelog.d"
    if not folder.is_dir():
        return []
    return [_read(path) for path in sorted(folder.iterdir()) if path.name != ".gitkeep"]


def _read(path: Path) -> Fragment:
    parts = path.name.split(".")
    if len(parts) < 3 or parts[-1] != "md" or parts[-2] not in KINDS:
        raise ToolError(f"{path}: a fragment is named NAME.KIND.md, where KIND is one of {', '.join(KINDS)}")
    text = path.read_text(encoding="utf-8").strip()
    if not text:
        raise ToolError(f"{path} is empty: say in a sentence what changes for a user")
    return Fragment(path, parts[-2], text)


def next_version(current: str, fragments: Sequence[Fragment]) -> str:
    """Semantic versioning; before 1.0 the minor number takes the place of the major one."""
    try:
        major, minor, patch = (int(part) for part in current.split("."))
    except ValueError:
        raise ToolError(f"version {current!r} must be three numbers, like 0.2.1") from None
    kinds = {fragment.kind for fragment in fragments}
    if "removed" in kinds and major > 0:
        return f"{major + 1}.0.0"
    if kinds & {"removed", "changed", "added"}:
        return f"{major}.{minor + 1}.0"
    return f"{major}.{minor}.{patch + 1}"


def render_section(version: str, date: str, fragments: Sequence[Fragment]) -> str:
    lines = [f"## {version} ({date})"]
    for kind in KINDS:
        texts = [fragment.text for fragment in fragments if fragment.kind == kind]
        if texts:
            lines += ["", f"### {kind.capitalize()}", ""]
            lines += ["- " + text.replace("\n", "\n  ") for text in texts]
    return "\n".join(lines) + "\n"


def insert_section(changelog: str, section: str) -> str:
    """Put the newest release first, right below the marker."""
    if changelog.count(MARKER) != 1:
        raise ToolError(f"CHANGELOG.md must hold this line exactly once: {MARKER}")
    before, after = changelog.split(MARKER)
    return f"{before}{MARKER}\n\n{section}\n{after.strip()}".rstrip() + "\n"
