"""The short way between a worker and the scheduler where both live in one process.

Workers' news travel with a step's output. A donor that becomes durable between two requests would then be found one
step late; in one process the scheduler's half can ask at any time. Orders travel with a step too. Donors that are
forgotten while vLLM pauses or sleeps would keep their memory until the next one. And only here the scheduler can be
told when a forward ended: vLLM asks for a step's results when it has launched the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol
from weakref import WeakValueDictionary

from semblend_core import Namespace, TenantReport
from semblend_core.serving import StepWork, WorkerNews


class NearWorker(Protocol):
    """A worker's half, as the scheduler's half sees it. Any thread."""

    def take_news(self) -> WorkerNews | None: ...
    def ended(self, work: StepWork) -> float | None: ...
    def purge(self, tenant: str) -> TenantReport: ...
    def held_by(self, tenant: str) -> TenantReport: ...

    def forget(self, donors: Iterable[tuple[Namespace, str]]) -> None: ...


_workers: WeakValueDictionary[str, NearWorker] = WeakValueDictionary()


def announce(vllm_config: Any, worker: NearWorker) -> None:
    if vllm_config.parallel_config.world_size == 1:
        _workers[vllm_config.kv_transfer_config.engine_id] = worker


class Neighbour:
    """The worker of an engine, if it lives in this process."""

    def __init__(self, engine_id: str) -> None:
        self._engine_id = engine_id

    @property
    def is_here(self) -> bool:
        return self._engine_id in _workers

    def take_news(self) -> WorkerNews | None:
        worker = _workers.get(self._engine_id)
        return None if worker is None else worker.take_news()

    def ended(self, work: StepWork) -> float | None:
        """Since when the forward of a step with these orders has ended; None: that is not known here."""
        worker = _workers.get(self._engine_id)
        return None if worker is None else worker.ended(work)

    def purge(self, tenant: str) -> TenantReport:
        """Waits until the worker's store has dropped all of the tenant's. Nothing where it is in another process."""
        worker = _workers.get(self._engine_id)
        return TenantReport() if worker is None else worker.purge(tenant)

    def held_by(self, tenant: str) -> TenantReport:
        worker = _workers.get(self._engine_id)
        return TenantReport() if worker is None else worker.held_by(tenant)

    def forget(self, donors: Iterable[tuple[Namespace, str]]) -> None:
        worker = _workers.get(self._engine_id)
        if worker is not None:
            worker.forget(donors)
