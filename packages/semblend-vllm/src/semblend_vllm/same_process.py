"""The short way from a worker to the scheduler where both live in one process.

Workers' news travel with a step's output. A donor that becomes durable between two requests would then be found one
step late; in one process the scheduler's half can ask at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from semblend_vllm.messages import WorkerNews
from semblend_vllm.worker_side import WorkerSide

_workers: WeakValueDictionary[str, WorkerSide] = WeakValueDictionary()


def announce(vllm_config: Any, worker: WorkerSide) -> None:
    if vllm_config.parallel_config.world_size == 1:
        _workers[vllm_config.kv_transfer_config.engine_id] = worker


def news_of(vllm_config: Any) -> Callable[[], WorkerNews | None]:
    engine = vllm_config.kv_transfer_config.engine_id

    def take() -> WorkerNews | None:
        worker = _workers.get(engine)
        return None if worker is None else worker.take_news()

    return take
