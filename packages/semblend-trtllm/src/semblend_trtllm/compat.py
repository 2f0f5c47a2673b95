"""Everything that differs between TensorRT-LLM's releases, and whether one is here.

The connector API is found by what a release has, not by its number: the module moved after 1.2, and later ones tell
more of a request. Nothing here imports the engine before ``connector_api`` is called.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from semblend_core import DeclineReason
from semblend_trtllm.settings import TrtllmSettings

logger = logging.getLogger(__name__)

HOMES = (
    "tensorrt_llm._torch.pyexecutor.connectors.kv_cache_connector",  # 1.3 and later
    "tensorrt_llm._torch.pyexecutor.kv_cache_connector",  # 1.2
)
KNOWN = ("1.2", "1.3")
"""Releases whose connector classes and manager the tests were run against."""
SOURCES_VARIABLE = "SEMBLEND_TRTLLM_SRC"
"""Checkouts of TensorRT-LLM for tests, separated as in ``PATH``: their Python files suffice."""

_NO_TOKENS = ("multimodal_hashes", "multimodal_embedding", "prompt_embedding_table", "mrope_rotary_cos_sin")
"""Set where a part of the prompt is no tokens, or its places are not 0, 1, 2 and so on."""


class UnsupportedTrtllmError(RuntimeError):
    """This TensorRT-LLM, or this way of running it, is not one that the adapter knows."""


@dataclass(frozen=True)
class ConnectorApi:
    """The two classes that a connector inherits, and where they were found."""

    home: str
    scheduler: type
    worker: type


def connector_api() -> ConnectorApi:
    """ImportError where there is none, with what to install."""
    for home in HOMES:
        try:
            module = importlib.import_module(home)
        except ModuleNotFoundError as error:
            if error.name is None or not home.startswith(error.name):
                raise  # It is there, and misses something of its own.
            continue
        return ConnectorApi(home, module.KvCacheConnectorScheduler, module.KvCacheConnectorWorker)
    raise ImportError(
        f"TensorRT-LLM's KV-cache connector is in none of {', '.join(HOMES)}: "
        f"install tensorrt_llm {' or '.join(KNOWN)} (extra `trtllm` of semblend-trtllm)"
    )


def installed_version() -> str | None:
    for distribution in ("tensorrt_llm", "tensorrt-llm"):
        try:
            return metadata.version(distribution).split("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return None


def why_refused(version: str | None, forced: bool) -> str | None:
    """Why nothing is reused with this release; None where its connector API is known."""
    if version is not None and any(version == known or version.startswith(f"{known}.") for known in KNOWN):
        return None
    reason = f"semblend-trtllm was never tested with TensorRT-LLM {version or 'without a version'}"
    variable = TrtllmSettings.variable("force_version")
    if forced:
        logger.warning("at your own risk (%s): %s", variable, reason)
        return None
    return f"{reason}. Install {' or '.join(KNOWN)}, or set {variable}=1 to try it at your own risk"


# --- Requests -----------------------------------------------------------------------------------------------------


def salt_of(request: Any) -> str | None:
    """Its cache salt. 1.2 tells only the number that it makes of it, which serves as well."""
    salt = getattr(request, "cache_salt", None)
    if salt:
        return str(salt)
    number = getattr(request, "cache_salt_id", None)
    return None if number is None else f"id:{number}"


def adapter_of(request: Any) -> int | None:
    """The number of its LoRA adapter: TensorRT-LLM's, and another with every start."""
    number = getattr(request, "lora_task_id", None)
    return None if number is None else int(number)


def why_not_followed(request: Any) -> DeclineReason | None:
    """Why a request is left alone; None where its prompt is all tokens and it wants nothing of them but KV."""
    if any(getattr(request, name, None) is not None for name in _NO_TOKENS):
        return DeclineReason.UNSUPPORTED_REQUEST
    if getattr(request, "return_context_logits", False) is True:  # Of every token, so every token is computed.
        return DeclineReason.UNSUPPORTED_REQUEST
    return None


def honoured(request: Any, promised: int) -> int:
    """How many of the promised tokens the engine counts on. Later releases may take fewer, and say so."""
    taken = getattr(request, "py_num_connector_matched_tokens", None)
    return min(promised, taken) if isinstance(taken, int) and not isinstance(taken, bool) else promised


# --- Tests --------------------------------------------------------------------------------------------------------


def source_checkouts() -> list[Path]:
    """The checkouts that ``SEMBLEND_TRTLLM_SRC`` names."""
    named = [Path(each) for each in os.environ.get(SOURCES_VARIABLE, "").split(os.pathsep) if each]
    for checkout in named:
        if version_of(checkout) is None:
            raise UnsupportedTrtllmError(
                f"{SOURCES_VARIABLE}: {checkout} holds no tensorrt_llm/version.py: name checkouts of TensorRT-LLM, "
                f"separated by {os.pathsep!r}"
            )
    return named


def version_of(checkout: Path) -> str | None:
    try:
        said = (checkout / "tensorrt_llm" / "version.py").read_text()
    except OSError:
        return None
    found = re.search(r'__version__\s*=\s*"([^"]+)"', said)
    return found.group(1) if found else None


def version_under_test() -> str | None:
    """What a test run's header says: the installed release, or those of the checkouts."""
    installed = installed_version()
    if installed is not None:
        return installed
    return " and ".join(f"{version_of(each)} (sources)" for each in source_checkouts()) or None
