"""What TensorRT-LLM is to be configured with, as Python and as the YAML of ``trtllm-serve --config``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONNECTOR = {
    "connector_module": "semblend_trtllm.connector",
    "connector_scheduler_class": "SemBlendConnectorScheduler",
    "connector_worker_class": "SemBlendConnectorWorker",
}
EVENTS = 65536
"""KV events that wait for a reader."""


class PresetError(ValueError):
    """A configuration that contradicts what SemBlend needs; names the setting and the fix."""


def kv_connector_config() -> Any:
    """TensorRT-LLM's own ``KvCacheConnectorConfig``, for ``LLM(kv_connector_config=...)``."""
    from semblend_core import require_extra

    arguments = require_extra("tensorrt_llm.llmapi.llm_args", distribution="semblend-trtllm", extra="trtllm")
    return arguments.KvCacheConnectorConfig(**CONNECTOR)


def with_semblend(
    options: Mapping[str, Any], *, kv_events: bool = False, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """``options`` of ``trtllm-serve --config`` with SemBlend switched on. PresetError where they contradict that.

    ``environment``: whose ``SEMBLEND_*`` variables are handed on to the engine's processes. By itself TensorRT-LLM only
    hands on its own.
    """
    given = options.get("kv_connector_config")
    if given is not None and dict(given) != CONNECTOR:
        raise PresetError(f"kv_connector_config names another connector ({dict(given)}): leave it out")
    cache = dict(options.get("kv_cache_config") or {})
    if cache.get("enable_block_reuse") is False:
        raise PresetError(
            "kv_cache_config.enable_block_reuse is false, and TensorRT-LLM then ignores what a connector promises: "
            "leave it out, or set it to true"
        )
    if cache.get("enable_partial_reuse"):
        raise PresetError(
            "kv_cache_config.enable_partial_reuse is true, and nothing can be loaded behind a part of a block: "
            "leave it out, or set it to false"
        )
    policy = dict(options.get("scheduler_config") or {}).get("capacity_scheduler_policy", "GUARANTEED_NO_EVICT")
    if policy != "GUARANTEED_NO_EVICT":
        raise PresetError(
            f"scheduler_config.capacity_scheduler_policy is {policy}, and connectors need GUARANTEED_NO_EVICT: "
            "leave it out"
        )
    cache |= {"enable_block_reuse": True, "enable_partial_reuse": False}
    if kv_events:
        cache.setdefault("event_buffer_max_size", EVENTS)
    completed = {**options, "kv_cache_config": cache, "kv_connector_config": dict(CONNECTOR)}
    ours = {name: value for name, value in (environment or {}).items() if name.startswith("SEMBLEND_")}
    if ours:
        completed["env_overrides"] = {**ours, **(options.get("env_overrides") or {})}
    return completed
