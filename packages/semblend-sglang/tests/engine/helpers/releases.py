"""What releases of SGLang call differently, so that one scheduler of the tests' own steps through each of them."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from sglang.srt.environ import envs
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache import base_prefix_cache, common
from sglang.srt.mem_cache.allocator import paged
from sglang.srt.mem_cache.cache_init_params import CacheInitParams

from semblend_sglang.compat import cache_class, hooks

TAKES_CHECKPOINTS = hasattr(common, "checkpoint_kv_cache")
KNOWS_CORE = "tree_core_backend" in {field.name for field in dataclasses.fields(CacheInitParams)}


class _WithoutKernel:
    """SGLang's own arithmetic for a CPU, which only newer releases choose there by themselves."""

    def __getitem__(self, grid: Any) -> Any:
        return self._allocate

    @staticmethod
    def _allocate(prefix_lens: Any, seq_lens: Any, last: Any, free: Any, out: Any, _: int, page_size: int) -> None:
        paged.alloc_extend_naive(prefix_lens, seq_lens, last, free, out, page_size, "cpu")


if not hasattr(paged, "alloc_decode_naive"):
    paged.alloc_extend_kernel = _WithoutKernel()


def new_tree(core: str, **parameters: Any) -> tuple[Any, Any]:
    """What a cache is made from, and the cache."""
    chosen = getattr(envs, "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", None)
    made = CacheInitParams(**parameters, **({"tree_core_backend": core} if KNOWS_CORE else {}))
    with nullcontext() if KNOWS_CORE or chosen is None else chosen.override(core):
        return made, cache_class()(made)


def keep(request: Req, tree: Any, *, in_pieces: bool) -> None:
    """As behind each forward of a prompt."""
    if TAKES_CHECKPOINTS:
        common.checkpoint_kv_cache(request, tree)
    else:
        common.maybe_cache_unfinished_req(request, tree, chunked=in_pieces)


def release(request: Req, tree: Any, *, keep_it: bool) -> None:
    common.release_kv_cache(request, tree, **{"checkpoint" if TAKES_CHECKPOINTS else "is_insert": keep_it})


def leave_queue(request: Req, tree: Any, waiting: list[Req]) -> None:
    """A request that waited is aborted. ``waiting``: those that still do."""
    outcomes = getattr(base_prefix_cache, "CacheRequestOutcome", None)
    if outcomes is not None:
        tree.finish(request.cache_request_handle, outcomes.ABORT)
    else:
        hooks.abort_request(lambda _: None, SimpleNamespace(tree_cache=tree, waiting_queue=waiting))


def prefix_len(request: Req) -> int:
    return int(request.prefix_len) if hasattr(request, "prefix_len") else len(request.prefix_indices)


def found_len(match: Any) -> int:
    return int(match.device_prefix_len) if hasattr(match, "device_prefix_len") else len(match.device_indices)


def extend_end(request: Req) -> int:
    return int(request.extend_end if hasattr(request, "extend_end") else request.extend_range.end)


def computes_up_to(request: Req, end: int) -> None:
    """The oldest of them note it when a batch is made, and not where they allocate."""
    if hasattr(request, "kv_committed_len"):
        request.kv_committed_len = end


def row_of(request: Req) -> int:
    return int(request.req_pool_idx if hasattr(request, "req_pool_idx") else request.kv.req_pool_idx)


def owned_by_trees(request: Req) -> int:
    return int((request if hasattr(request, "cache_protected_len") else request.kv).cache_protected_len)
