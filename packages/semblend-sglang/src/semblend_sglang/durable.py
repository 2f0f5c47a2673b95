"""A storage backend for SGLang's hierarchical cache: exact pages on disk, which survive eviction, restart and crash.

    --enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
    '{"backend_name": "semblend", "module_path": "semblend_sglang.durable", "class_name": "DurablePages", "path": DIR}'

SGLang names a page by a hash over all tokens up to its end and the request's ``extra_key`` and ``cache_salt``. What
that hash leaves out (the model, the form of the KV, which part of it this process holds) decides about the folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from sglang.srt.mem_cache import utils as sglang_hashing
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig, PoolName
from sglang.srt.runtime_context import get_context

from semblend_core import LOADED_FROM_FILES, identity_of_weights
from semblend_core.kv import PageFolder
from semblend_sglang.compat.generations import takes_checkpoints
from semblend_sglang.compat.versions import UnsupportedSglangError

logger = logging.getLogger(__name__)

_SGLANGS_OPTIONS = {"backend_name", "module_path", "class_name", "file_storage_path"}
_OPTIONS = {"path", "budget_gib", "namespace"}
_SHAPES_THE_KV = (
    *("model_path", "revision", "weight_version", "load_format", "dtype", "quantization", "torchao_config"),
    *("json_model_override_args", "model_impl", "kv_cache_dtype", "quantization_param_path"),
    *("speculative_algorithm", "speculative_draft_model_path"),
)


class DurableOptionError(ValueError):
    """What is said in the extra configuration is not understood."""


class DurablePages(HiCacheStorage):  # type: ignore[misc]
    """SGLang calls it from threads of its own. Whatever goes wrong with a page is a miss."""

    def __init__(self, storage_config: HiCacheStorageConfig, _: Any = None) -> None:
        if not hasattr(sglang_hashing, "storage_namespace_seed"):
            raise UnsupportedSglangError("this SGLang names a page by its tokens alone: tenants would share pages")
        if not takes_checkpoints():
            raise UnsupportedSglangError("durable pages are supported from SGLang 0.5.22 on")
        options = dict(storage_config.extra_config or {})
        unknown = set(options) - _SGLANGS_OPTIONS - _OPTIONS
        if unknown or not options.get("path"):
            said = f"unknown: {', '.join(sorted(unknown))}" if unknown else "`path` is missing"
            raise DurableOptionError(f"options of DurablePages are {', '.join(sorted(_OPTIONS))}; {said}")
        self._root, self._namespace = Path(options["path"]), str(options.get("namespace", ""))
        self._budget = int(float(options.get("budget_gib", 16)) * 2**30)
        self._config = storage_config
        self._pages: PageFolder | None = None

    # --- What SGLang tells -----------------------------------------------------------------------------------------

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        about = {"namespace": self._namespace, **_model(), **_form(mem_pool_host), **_shard(self._config)}
        said = json.dumps(about, sort_keys=True, default=str)
        folder = self._root / hashlib.blake2b(said.encode(), digest_size=16).hexdigest()
        self._pages = PageFolder(folder, self._budget)
        (folder / "about.json").write_text(json.dumps(about, indent=1, sort_keys=True, default=str))
        logger.info("%d durable pages, %.2f GiB, in %s", len(self._pages), self._pages.bytes / 2**30, folder)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        if host_pool_name != PoolName.KV:
            raise UnsupportedSglangError(f"durable pages are of plain KV: {host_pool_name} beside it is not supported")
        super().register_mem_host_pool_v2(host_pool, host_pool_name)

    # --- What SGLang asks ------------------------------------------------------------------------------------------

    def exists(self, key: str) -> bool:
        pages = self._pages  # It may go while SGLang's threads are in here.
        return pages is not None and pages.holds(key)

    def get(self, key: str, target_location: torch.Tensor, target_sizes: Any = None) -> torch.Tensor | None:
        pages = self._pages
        if pages is None or not pages.read(key, _bytes_of(target_location)):
            return None
        return target_location

    def batch_get(
        self, keys: list[str], target_locations: list[torch.Tensor], target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        return [self.get(key, target) for key, target in zip(keys, target_locations, strict=True)]

    def set(self, key: str, value: torch.Tensor, target_location: Any = None, target_sizes: Any = None) -> bool:
        pages = self._pages
        return pages is not None and pages.write(key, _bytes_of(value.contiguous()))

    def batch_set(
        self, keys: list[str], values: list[torch.Tensor], target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        return all(self.set(key, value) for key, value in zip(keys, values, strict=True))

    def clear(self) -> None:
        if self._pages is not None:
            self._pages.clear()

    def semblend_purge(self) -> None:
        """A page is named by a hash of its tokens and salt, and does not say whose it is: all of them go."""
        self.clear()

    def semblend_weights_changed(self) -> None:
        """What is on disk stays, for a process that starts with the weights it is of. This one has others now."""
        if self._pages is not None:
            logger.warning("SGLang changed its weights: it keeps and finds no durable page until it is started again")
        self._pages = None

    def close(self) -> None:
        """Every page that was taken is on disk already."""


def _bytes_of(page: torch.Tensor) -> memoryview:
    return page.view(-1).view(torch.uint8).numpy().data


def _model() -> dict[str, Any]:
    """Whose KV it is. A name alone does not say so: other weights may lie in the same place later."""
    arguments = get_context().resolved_server_args_dict()
    if arguments.get("load_format") not in LOADED_FROM_FILES:
        said = f"load_format={arguments.get('load_format')}"
        raise UnsupportedSglangError(f"durable pages are of weights that are read from files, which {said} need not do")
    known = (arguments.get("lora_paths") or ()) if arguments.get("enable_lora") else ()
    adapters = {str(adapter["lora_path"] if isinstance(adapter, dict) else adapter.lora_path) for adapter in known}
    return {
        **{name: arguments.get(name) for name in _SHAPES_THE_KV},
        "weights": _weights(str(arguments["model_path"]), "config.json", arguments.get("revision")),
        "adapters": {place: _weights(place, "adapter_config.json") for place in sorted(adapters)},
    }


def _weights(place: str, marker: str, revision: str | None = None) -> str:
    """What tells these weights from others. Of a name at a hub: the commit that was fetched, ``marker`` with it."""
    fetched = None if Path(place).exists() else try_to_load_from_cache(place, marker, revision=revision)
    commit = Path(fetched).parent.name if isinstance(fetched, str) else None
    if commit is None and not Path(place).exists():
        raise UnsupportedSglangError(
            f"nothing tells which weights {place!r} stands for: name the folder that holds them"
        )
    return identity_of_weights(place, commit)


def _form(pool: Any) -> dict[str, Any]:
    page = pool.get_dummy_flat_data_page()
    layers = (getattr(pool, "start_layer", None), getattr(pool, "end_layer", None))
    return {
        "page": [type(pool).__name__, str(pool.layout), str(pool.dtype), int(pool.page_size), layers],
        "page_bytes": page.numel() * page.element_size(),
    }


def _shard(config: HiCacheStorageConfig) -> dict[str, Any]:
    """Which part of each page is held here. Every rank of MLA holds all of it, and one writes for all."""
    others = ("pp_rank", "pp_size", "attn_cp_rank", "attn_cp_size", "dp_rank")
    tensor = None if config.is_mla_model else (config.tp_rank, config.tp_size)
    return {
        "served_as": config.model_name,
        "tensor_parallel": tensor,
        **{name: getattr(config, name, None) for name in others},
    }
