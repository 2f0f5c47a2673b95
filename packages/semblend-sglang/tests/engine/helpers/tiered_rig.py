"""The rig with SGLang's real hierarchical cache: its host pools, controller, threads and storage, on a CPU.

SGLang copies between device and host with CUDA kernels and pins host memory. Here the same slots are copied by index
and nothing is pinned; everything else is SGLang's own code, the scheduler's part of a prefetch included.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rig import Rig
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.pool_host import common, mha, mla
from sglang.srt.mem_cache.pool_host.base import HostKVCache
from sglang.srt.runtime_context import get_memory, get_parallel, get_server_args

from semblend_core.testing import wait_until
from semblend_sglang.compat import hooks

DURABLE = {"backend_name": "semblend", "module_path": "semblend_sglang.durable", "class_name": "DurablePages"}


def copy_by_index(
    src_layers: list[torch.Tensor],
    dst_layers: list[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def host_pools_on_a_cpu() -> ExitStack:
    """What SGLang leaves to CUDA. Until closed."""
    pinned = HostKVCache.__init__

    def unpinned(self: Any, **options: Any) -> None:
        pinned(self, **{**options, "pin_memory": False})

    stack = ExitStack()
    for module in (mha, mla):
        stack.enter_context(mock.patch.object(module, "transfer_kv_direct", copy_by_index, create=True))
    stack.enter_context(mock.patch.object(HostKVCache, "__init__", unpinned))
    stack.enter_context(mock.patch.object(common, "_cuda_host_register", return_value=None))
    return stack


class PrefetchingScheduler:
    """The scheduler's own functions for its storage, and the three fields that they read."""

    enable_hicache_storage, enable_lmcache = True, False
    _prefetch_after_device_hit_loss = Scheduler._prefetch_after_device_hit_loss
    _retry_storage_prefetch = Scheduler._retry_storage_prefetch

    def __init__(self, tree_cache: Any) -> None:
        self.tree_cache = tree_cache

    def _prefetch_kvcache(self, *args: Any) -> Any:
        return hooks.ask_storage(Scheduler._prefetch_kvcache, self, *args)


class TieredRig(Rig):
    def __init__(
        self,
        *,
        storage: Path | None = None,
        host_ratio: float = 4.0,
        write_policy: str = "write_through",
        prefetch_policy: str = "wait_complete",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._configured = host_pools_on_a_cpu()
        extra = {**DURABLE, "path": str(storage), "budget_gib": 0.1, "prefetch_threshold": self.page_size}
        self._configured.enter_context(
            get_memory().override(
                enable_hierarchical_cache=True,
                hicache_io_backend="direct",
                hicache_mem_layout="layer_first",
                hicache_write_policy=write_policy,
                hicache_ratio=host_ratio,
                hicache_storage_backend="dynamic" if storage else None,
                hicache_storage_backend_extra_config=json.dumps(extra),
                hicache_storage_prefetch_policy=prefetch_policy,
            )
        )
        self._configured.enter_context(get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1))
        self.tree.init_hicache(get_server_args(), self.parameters)
        self.scheduler = PrefetchingScheduler(self.tree) if storage else None

    def close(self) -> None:
        atexit.unregister(self.tree.shutdown)
        self.tree.shutdown()
        self._configured.close()

    # --- What the scheduler does around the rig's own steps ----------------------------------------------------------

    def submit(self, prompt: list[int], rid: str, **options: Any) -> Req:
        request = super().submit(prompt, rid, **options)
        if self.scheduler is not None:
            self.scheduler._prefetch_kvcache(request)
        return request

    def step(self) -> list[Req]:
        self.tree.check_hicache_events()
        return super().step()

    def _is_asked_about(self, request: Req) -> bool:
        if self.scheduler is None:
            return super()._is_asked_about(request)
        if not self.tree.check_prefetch_progress(request.cache_request_handle):
            return False
        request.storage_hit_length, request.storage_hit_start = self.tree.pop_prefetch_loaded_span(
            request.cache_request_handle
        )
        request.init_next_round_input(self.tree)
        return not self.scheduler._prefetch_after_device_hit_loss(request)

    def _forward(self, requests: list[Req]) -> None:
        self.tree.ready_to_load_host_cache()
        super()._forward(requests)

    # --- What lies where ---------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Until everything that is to be copied to host memory and storage is there."""
        controller = self.tree.cache_controller
        self.wait_until(
            lambda: not (self.tree.ongoing_write_through or self.tree.ongoing_load_back or controller.ack_write_queue)
        )
        if self.scheduler is not None:
            self.wait_until(lambda: not self.tree.ongoing_backup)

    def wait_until(self, happened: Callable[[], bool]) -> None:
        def happened_or_goes_on() -> bool:
            if happened():
                return True
            self.tree.check_hicache_events()
            return False

        wait_until(happened_or_goes_on, "what the hierarchical cache was to do", every_s=0.002)

    def serve(self, prompt: list[int], rid: str, **options: Any) -> Req:
        request = self.submit(prompt, rid, **options)
        self.wait_until(lambda: self.step() is not None and request in self.running)
        self.finish(request)
        return request

    def forget_host(self) -> None:
        """What is in host memory only leaves it, as it does for others."""
        self.tree.evict_host(self.slots * 8)
