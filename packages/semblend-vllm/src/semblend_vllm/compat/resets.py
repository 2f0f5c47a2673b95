"""When vLLM resets its prefix cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def on_reset(manager: Any, reset: Callable[[], None]) -> None:
    """Call ``reset`` before the manager resets vLLM's own cache, whether or not that succeeds.

    vLLM asks a connector only where its caller asks for that. Trainers, who reset it after they changed the weights, do
    not.
    """
    original = manager.reset_prefix_cache

    @wraps(original)
    def reset_prefix_cache(*args: Any, **kwargs: Any) -> Any:
        reset()
        return original(*args, **kwargs)

    manager.reset_prefix_cache = reset_prefix_cache
