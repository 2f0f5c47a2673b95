"""Whether vLLM is here, which, and whether this adapter was tested with it: without importing it."""

from __future__ import annotations

import logging
from importlib import metadata

from semblend_core.pins import why_changed
from semblend_vllm.compat.relied import RELIED
from semblend_vllm.settings import VllmSettings

logger = logging.getLogger(__name__)

TESTED_VERSIONS = ("0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0")


class UnsupportedVllmError(RuntimeError):
    """This vLLM, or this way of running it, is not one the adapter was tested with."""


def why_refused(forced: bool) -> str | None:
    """Why nothing is reused with this vLLM; None where it is one that was tested, and unchanged since."""
    version = installed_version()
    if version is None or version not in TESTED_VERSIONS:
        reason: str | None = f"semblend-vllm was never tested with vLLM {version}"
    else:
        reason = why_changed(RELIED, version)
    if reason is None:
        return None
    if forced:
        logger.warning("at your own risk (%s): %s", VllmSettings.variable("force_version"), reason)
        return None
    tested = f"{', '.join(TESTED_VERSIONS[:-1])} or {TESTED_VERSIONS[-1]}"
    return (
        f"{reason}. Install vLLM {tested} as released, "
        f"or set {VllmSettings.variable('force_version')}=1 to try it at your own risk"
    )


def installed_version() -> str | None:
    for distribution in RELIED.distributions:
        try:
            return metadata.version(distribution).split("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return None
