"""Calls of vLLM's workers that change the weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any
from weakref import WeakSet

from vllm.v1.worker.gpu_worker import Worker

from semblend_core.serving.worker import WorkerSide

CHANGING = ("reload_weights", "update_weights", "finish_weight_update")
_listening: WeakSet[WorkerSide] = WeakSet()


def tell_of_new_weights(worker: WorkerSide) -> None:
    """vLLM tells its connectors nothing. Who updates the weights should reset the caches, and may not."""
    _listening.add(worker)
    _wrap_once()


@cache
def _wrap_once() -> None:
    for name in CHANGING:
        setattr(Worker, name, _telling(getattr(Worker, name)))


def _telling(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def changing(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        finally:  # Also where it failed half way.
            for worker in list(_listening):
                worker.new_weights()

    return changing
