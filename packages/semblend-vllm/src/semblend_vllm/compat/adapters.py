"""Adapters (LoRA) that vLLM is told to unload."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Protocol
from weakref import WeakSet

from vllm.v1.engine.core import EngineCore

from semblend_core.serving import contain


class Listener(Protocol):
    def adapter_unloaded(self, number: int) -> None:
        """``number``: vLLM's."""


_listening: WeakSet[Listener] = WeakSet()


def tell_of_unloaded_adapters(listener: Listener) -> None:
    """vLLM tells its workers, and no connector. It loads what is asked for, and so also what a client has unloaded."""
    _listening.add(listener)
    _wrap_once()


@cache
def _wrap_once() -> None:
    EngineCore.remove_lora = _telling(EngineCore.remove_lora)


def _telling(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def remove_lora(core: Any, lora_id: int) -> Any:
        for listener in list(_listening):
            contain("forgetting an adapter", listener.adapter_unloaded, lora_id)
        return method(core, lora_id)

    return remove_lora
