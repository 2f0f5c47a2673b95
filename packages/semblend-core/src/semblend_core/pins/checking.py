"""Whether the engine at hand is still what its version was when an adapter was tested with it."""

from __future__ import annotations

from pathlib import Path

from semblend_core.pins.pinning import Pins, Relied
from semblend_core.pins.reading import Sources, digest_of, fields_of


def why_changed(relied: Relied, version: str) -> str | None:
    """Why the installed engine is not the one that was tested; None where it is. Without pins it cannot be told."""
    pins, root = relied.pins_of(version), relied.installed_in()
    if pins is None or root is None:
        return f"there are no pins for {relied.engine} {version}: what it is made of was never noted"
    changes = changes_since(pins, root)
    if not changes:
        return None
    others = f", and {len(changes) - 1} more" if len(changes) > 1 else ""
    return f"{changes[0]}{others}: this {relied.engine} {version} was changed after its release"


def changes_since(pins: Pins, root: Path) -> list[str]:
    """What of the pinned has changed in the engine below ``root``, in words."""
    sources = Sources(root)
    same = {path for path, digest in pins.files.items() if sources.digest_of_file(path) == digest}
    changes = []
    for name, digest in pins.sources.items():
        if sources.file_of(name) in same:
            continue
        found = sources.find(name)
        if (digest_of(found) if found else None) != digest:
            changes.append(_change(name, digest is not None, bool(found), "has another source"))
    for name, fields in pins.fields.items():
        if sources.file_of(name) in same:
            continue
        found = sources.find(name)
        now = fields_of(found) if found else None
        if now != fields:
            what = f"has other fields ({', '.join(sorted(set(now or ()) ^ set(fields or ())))})"
            changes.append(_change(name, fields is not None, bool(found), what))
    return changes


def _change(name: str, was_there: bool, is_there: bool, otherwise: str) -> str:
    if not is_there:
        return f"{name} is gone"
    return f"{name} {otherwise}" if was_there else f"{name} is new"
