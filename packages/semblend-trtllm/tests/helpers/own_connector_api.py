"""The connector API as this adapter understands it, for runs without TensorRT-LLM's sources.

A manager that makes the same calls in the same order. It is no proof: the tests run against TensorRT-LLM's own manager
where its sources are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any


@dataclass
class RequestData:
    request_id: int
    new_tokens: list[int]
    new_block_ids: list[int]
    computed_position: int
    num_scheduled_tokens: int


@dataclass
class SchedulerOutput:
    new_requests: list[RequestData] = field(default_factory=list)
    cached_requests: list[RequestData] = field(default_factory=list)


class KvCacheConnectorWorker(ABC):
    def __init__(self, llm_args: Any) -> None:
        self._llm_args, self._metadata = llm_args, None

    def bind_connector_meta(self, metadata: Any) -> None:
        self._metadata = metadata

    @abstractmethod
    def register_kv_caches(self, kv_cache_tensor: Any) -> None: ...

    @abstractmethod
    def start_load_kv(self, stream: Any) -> None: ...

    @abstractmethod
    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None: ...

    @abstractmethod
    def save_kv_layer(self, layer_idx: int, stream: Any) -> None: ...

    @abstractmethod
    def wait_for_save(self, stream: Any) -> None: ...

    @abstractmethod
    def get_finished(self, finished: list[int], started: list[int]) -> tuple[list[int], list[int]]: ...


class KvCacheConnectorScheduler(ABC):
    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args

    @abstractmethod
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Any: ...

    @abstractmethod
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]: ...

    @abstractmethod
    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool: ...

    @abstractmethod
    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None: ...


class KvCacheConnectorManager:
    def __init__(self, worker: KvCacheConnectorWorker, scheduler: KvCacheConnectorScheduler) -> None:
        self.worker, self.scheduler = worker, scheduler
        self._told: dict[int, tuple[int, int]] = {}
        """By request: how many tokens and blocks were told of."""
        self._promised: dict[int, int] = {}
        self._output: SchedulerOutput | None = None

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> int:
        tokens, later = self.scheduler.get_num_new_matched_tokens(request, num_computed_tokens)
        assert not later
        self._promised[request.request_id] = tokens
        return tokens

    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
        self.scheduler.update_state_after_alloc(request, block_ids)

    def build_scheduler_output(self, batch: Any, kv_cache_manager: Any) -> None:
        self._output = SchedulerOutput()
        for request in batch.context_requests:
            is_new = request.request_id not in self._told
            position = request.context_current_position - self._promised.pop(request.request_id, 0)
            scheduled = min(request.context_remaining_length, request.context_chunk_size)
            told = self._data(request, kv_cache_manager, position, scheduled)
            (self._output.new_requests if is_new else self._output.cached_requests).append(told)
        for request in batch.generation_requests:
            position = len(request.get_tokens(0)) - 1
            self._output.cached_requests.append(self._data(request, kv_cache_manager, position, 1))

    def _data(self, request: Any, kv_cache_manager: Any, position: int, scheduled: int) -> RequestData:
        tokens, blocks = request.get_tokens(0), kv_cache_manager.get_cache_indices(request)
        known_tokens, known_blocks = self._told.get(request.request_id, (0, 0))
        self._told[request.request_id] = len(tokens), len(blocks)
        return RequestData(request.request_id, tokens[known_tokens:], blocks[known_blocks:], position, scheduled)

    def take_scheduled_requests_pending_load(self, batch: Any) -> None:
        """Nothing ever loads behind the engine's back."""

    def handle_metadata(self) -> None:
        if self._output is not None:
            self.worker.bind_connector_meta(self.scheduler.build_connector_meta(self._output))
            self._output = None

    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
        return self.scheduler.request_finished(request, cache_block_ids)

    def get_finished(self) -> list[Any]:
        self.worker.get_finished([], [])
        return []
