"""Whether SGLang is here, which, and whether this adapter knows it: without importing it."""

from __future__ import annotations

import logging
from importlib import metadata

from semblend_core.pins import why_changed as changes_of
from semblend_sglang.compat.relied import RELIED
from semblend_sglang.settings import SglangSettings

logger = logging.getLogger(__name__)

KNOWN_VERSIONS = ("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
"""The real engine was run in each. What was run besides is in docs/sglang.md, and each has its pins."""
FORCE_SETTING = SglangSettings.variable("force_version")


class UnsupportedSglangError(RuntimeError):
    """This SGLang, or this way of running it, is not one the adapter was made for."""


def installed_version() -> str | None:
    try:
        return metadata.version("sglang").split("+")[0]
    except metadata.PackageNotFoundError:
        return None


def why_changed() -> str | None:
    """Why the installed SGLang is not what its version was when the adapter was made for it; None: it is."""
    version = installed_version()
    if version not in KNOWN_VERSIONS:
        return None  # It is tried at its user's own risk, or the plugin has refused it.
    changed = changes_of(RELIED, version)
    if changed is None:
        return None
    if SglangSettings.from_env().force_version:
        logger.warning("at your own risk (%s): %s", FORCE_SETTING, changed)
        return None
    return f"{changed}. Install SGLang {version} as released, or set {FORCE_SETTING}=1 to try it at your own risk"


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
