"""Whether SGLang is here, which, and whether this adapter knows it: without importing it."""

from __future__ import annotations

from importlib import metadata

from semblend_sglang.settings import SglangSettings

KNOWN_VERSIONS = ("0.5.17", "0.5.22", "0.5.23")
"""0.5.17 and 0.5.23 were run; 0.5.22 has the calls of 0.5.23 and was read, not run."""
FORCE_SETTING = SglangSettings.variable("force_version")


class UnsupportedSglangError(RuntimeError):
    """This SGLang, or this way of running it, is not one the adapter was made for."""


def installed_version() -> str | None:
    try:
        return metadata.version("sglang").split("+")[0]
    except metadata.PackageNotFoundError:
        return None


def why_refused(version: str | None) -> str | None:
    """Why this version is not run with; None where it is."""
    if version in KNOWN_VERSIONS or SglangSettings.from_env().force_version:
        return None
    known = ", ".join(KNOWN_VERSIONS)
    if version is None:
        return f"SGLang is not installed: pip install 'semblend-sglang[sglang]' ({known})"
    return (
        f"semblend-sglang knows SGLang {known}, this is {version}: install one of them, "
        f"or set {FORCE_SETTING}=1 to try it at your own risk"
    )
