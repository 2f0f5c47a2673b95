"""LMCache's connector for vLLM moves KV on GPUs only; with this it does on CPUs, where vLLM packs its blocks.

Everything else is LMCache as it is installed: its keys, its lookups, its memory and its servers.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.lmcache_connector import LMCacheConnectorV1


class CpuPages:
    """What LMCache calls a GPU connector: between its chunks [2, layers, tokens, heads * dim] and vLLM's blocks."""

    def __init__(self, vllm_config: Any) -> None:
        self._config, self._memory = vllm_config, None

    def initialize_kvcaches_ptr(self, **kwargs: Any) -> None:
        """Nothing is kept of them: they come with every call."""

    def batched_from_gpu(self, chunks: list[Any], starts: list[int], ends: list[int], **kwargs: Any) -> None:
        memory, slots = self._pages(kwargs["kvcaches"]), kwargs["slot_mapping"].to("cpu", torch.long)
        for chunk, start, end in zip(chunks, starts, ends, strict=True):
            for layer in range(memory.layers):
                for kind, part in enumerate(memory.read_layer(layer, slots[start:end])):
                    chunk.tensor[kind, layer].copy_(part.reshape(end - start, -1))

    def batched_to_gpu(self, chunks: list[Any], starts: list[int], ends: list[int], **kwargs: Any) -> None:
        memory, slots = self._pages(kwargs["kvcaches"]), kwargs["slot_mapping"].to("cpu", torch.long)
        shape = memory.shape
        for chunk, start, end in zip(chunks, starts, ends, strict=True):
            for layer in range(memory.layers):
                keys, values = (chunk.tensor[kind, layer].view(end - start, shape.kv_heads, -1) for kind in (0, 1))
                memory.write_layer(layer, slots[start:end], keys, values)

    def _pages(self, kv_caches: list[torch.Tensor]) -> Any:
        from semblend_vllm.compat.kv_memory import kv_memory

        if self._memory is None:
            named = {f"layers.{number}": cache for number, cache in enumerate(kv_caches)}
            nothing_is_turned: list[Any] = [None] * len(named)
            self._memory = kv_memory(self._config, named, nothing_is_turned)
        return self._memory


class LMCacheOnCpu(LMCacheConnectorV1):  # type: ignore[misc]
    """Set it as ``kv_connector``, with this module as ``kv_connector_module_path``."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        # Imported no earlier: vLLM for CPUs stumbles over LMCache's modules when it starts its worker.
        from lmcache.v1 import gpu_connector

        gpu_connector.CreateGPUConnector = lambda *_, **__: CpuPages(vllm_config)
        super().__init__(vllm_config, *args, **kwargs)
