"""Every call with which SGLang's weights become others: donors and durable pages of the old ones are of no use then.

SGLang need not empty its cache for any of them, and what is kept would outlive the process besides.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any

from semblend_core.serving import contain
from semblend_sglang.compat.support import resolved
from semblend_sglang.scheduler.side import Side

Original = Callable[..., Any]
WEIGHTS = "weights"
"""SGLang's word for them, among the kinds of memory that it can release."""
RESET = "reset_tensors"
"""What SGLang's check of weights is asked for, to fill them with noise."""


def update_weights(original: Original, updater: Any, *args: Any, **kwargs: Any) -> Any:
    """Whether it succeeds or not: a failed update may have changed some of them."""
    tree_cache = updater.scheduler.tree_cache
    side: Side | None = getattr(tree_cache, "semblend", None)
    before = side.new_weights.times_emptied if side is not None else 0
    try:
        return original(updater, *args, **kwargs)
    finally:
        if side is not None:
            side.pool.learned = None  # It was fitted for the weights before.
        if side is not None and side.new_weights.times_emptied == before:
            contain("a change of weights", side.new_weights.without_a_flush, tree_cache.semblend_is_empty)
        _leave_durable_pages(tree_cache)


def open_session(original: Original, updater: Any, *args: Any, **kwargs: Any) -> Any:
    """From here on to the end of the session others may write to the weights without a word, as over RDMA."""
    contain("a session of updates", update_weights, lambda _: None, updater)
    return original(updater, *args, **kwargs)


def resume_memory(original: Original, updater: Any, recv_req: Any, *args: Any, **kwargs: Any) -> Any:
    """Memory that was released comes back empty, unless SGLang keeps a copy of the weights on the host."""
    has_copy = getattr(resolved(updater.scheduler.server_args), "enable_weights_cpu_backup", False)
    if has_copy or (recv_req.tags and WEIGHTS not in recv_req.tags):
        return original(updater, recv_req, *args, **kwargs)
    return update_weights(original, updater, recv_req, *args, **kwargs)


def check_weights(original: Original, updater: Any, recv_req: Any, *args: Any, **kwargs: Any) -> Any:
    if recv_req.action != RESET:
        return original(updater, recv_req, *args, **kwargs)
    return update_weights(original, updater, recv_req, *args, **kwargs)


UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
_IN_ALL_VERSIONS: dict[str, Callable[..., Any]] = {
    "update_weights_from_disk": update_weights,
    "update_weights_from_distributed": update_weights,
    "update_weights_from_tensor": update_weights,
    "update_weights_from_ipc": update_weights,
    "resume_memory_occupation": resume_memory,
    "check_weights": check_weights,
}
_SINCE_SESSIONS: dict[str, Callable[..., Any]] = {
    "begin_weight_update": open_session,
    # The only call that ends an update by RDMA.
    "end_weight_update": update_weights,
}


def weight_hooks() -> dict[str, Callable[..., Any]]:
    """For the SGLang that is installed. Adapters have no hooks: each that is loaded has an id of its own."""
    updater = pkgutil.resolve_name(UPDATER)
    of_this = {name: hook for name, hook in _SINCE_SESSIONS.items() if hasattr(updater, name)}
    return {f"{UPDATER}.{name}": hook for name, hook in {**_IN_ALL_VERSIONS, **of_this}.items()}


def _leave_durable_pages(tree_cache: Any) -> None:
    contain("a change of weights", getattr(storage_of(tree_cache), "semblend_weights_changed", lambda: None))


def storage_of(tree_cache: Any) -> Any:
    """Of SGLang's hierarchical cache; None where there is none."""
    return getattr(getattr(tree_cache, "cache_controller", None), "storage_backend", None)
