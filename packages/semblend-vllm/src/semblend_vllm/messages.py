"""Core's messages as vLLM carries them between its processes."""

from __future__ import annotations

from dataclasses import dataclass, fields

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from semblend_core.serving import StepWork, WorkerNews


@dataclass
class VllmStepWork(StepWork, KVConnectorMetadata):  # type: ignore[misc]
    """With a step to the workers."""


@dataclass
class VllmWorkerNews(WorkerNews, KVConnectorWorkerMetadata):  # type: ignore[misc]
    """With a step's output back to the scheduler."""

    @classmethod
    def of(cls, news: WorkerNews) -> VllmWorkerNews:
        return cls(**{each.name: getattr(news, each.name) for each in fields(WorkerNews)})

    def aggregate(self, other: KVConnectorWorkerMetadata) -> VllmWorkerNews:
        assert isinstance(other, WorkerNews)
        return self.of(self.joined(other))
