"""vLLM's plugin: ``kv_connector: SemBlendConnectorV1`` needs no module path, and brings its scheduler along.

vLLM calls it in each of its processes, before it reads its arguments.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from semblend_vllm.compat.versions import TESTED_VERSIONS, installed_version
from semblend_vllm.settings import VllmSettings

logger = logging.getLogger(__name__)

CONNECTOR = "SemBlendConnectorV1"
HOME = "semblend_vllm"
SCHEDULER = f"{HOME}.SemBlendScheduler"
EARLIER_HOMES = ("semblend.", "semblend_kv_connector", "synapse_kv_connector")
"""How module paths of the public package ``semblend`` begin, which ships a connector of the same name."""
_MARK = "_semblend_completes"


def register() -> None:
    """Safe to be called several times in a process. What fails here costs nobody else their start."""
    try:
        _register()
    except Exception:
        logger.exception("vLLM does not know %s by its name alone: add kv_connector_module_path %s", CONNECTOR, HOME)


def _register() -> None:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if CONNECTOR not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(CONNECTOR, HOME, CONNECTOR)
    if not getattr(VllmConfig.__post_init__, _MARK, False):
        VllmConfig.__post_init__ = _completing(VllmConfig.__post_init__)


def _completing(post_init: Any) -> Any:
    @functools.wraps(post_init)
    def complete(config: Any) -> None:
        _leave_earlier_home(config.kv_transfer_config)
        post_init(config)
        _bring_scheduler(config)

    setattr(complete, _MARK, True)
    return complete


def _leave_earlier_home(transfer: Any) -> None:
    home = transfer.kv_connector_module_path if _is_ours(transfer) else None
    if home is not None and home.startswith(EARLIER_HOMES):
        logger.warning("kv_connector_module_path %s is the public package's: %s is used; leave it out", home, HOME)
        transfer.kv_connector_module_path = None


def _bring_scheduler(config: Any) -> None:
    """Where nobody has chosen another one. It is made for certain releases: in others the connector says what to do."""
    if not _is_ours(config.kv_transfer_config) or config.scheduler_config.scheduler_cls is not None:
        return
    if installed_version() in TESTED_VERSIONS or VllmSettings.from_env().force_version:
        config.scheduler_config.scheduler_cls = SCHEDULER


def _is_ours(transfer: Any) -> bool:
    return transfer is not None and transfer.kv_connector == CONNECTOR
