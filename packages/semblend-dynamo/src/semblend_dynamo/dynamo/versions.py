"""Which Dynamo is here: without importing it."""

from __future__ import annotations

from importlib import metadata

KNOWN_VERSIONS = ("1.6.1",)


def installed_version() -> str | None:
    try:
        return metadata.version("ai-dynamo-runtime")
    except metadata.PackageNotFoundError:
        return None
