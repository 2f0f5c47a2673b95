"""Which Dynamo is here: without importing it."""

from __future__ import annotations

from importlib import metadata

KNOWN_VERSIONS = ("1.6.1",)


def why_unsure(version: str | None) -> str | None:
    """What to say of a Dynamo that this router was not run with; None for one that it was."""
    if version in KNOWN_VERSIONS:
        return None
    return f"this router was run with Dynamo {', '.join(KNOWN_VERSIONS)}; {version} is tried at your own risk"


def installed_version() -> str | None:
    try:
        return metadata.version("ai-dynamo-runtime")
    except metadata.PackageNotFoundError:
        return None
