"""LMCache's engine, made for donors: its keys by namespace and donor, its chunks of rows instead of pages."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from semblend_core.extras import require_extra
from semblend_core.kv.store.lmcache_rows import CHUNK_TOKENS, check, seal
from semblend_core.kv.store.vocabulary import CorruptDonorError, Quarantine

_MODEL = "semblend-kv1"
"""Where LMCache's keys name the model: keys of engines that use LMCache themselves begin otherwise."""

Take: TypeAlias = Callable[[int, Tensor], None]
"""Takes the rows from a token of the donor's on. They are lent for the time of the call."""


NumberOf: TypeAlias = Callable[[int, int], int]
"""A number that no other chunk has, of tokens [start, end) of a donor."""


class _Rows:
    """Between LMCache's memory and a donor's rows: what LMCache calls a GPU connector."""

    def batched_from_gpu(
        self, chunks: list[Any], starts: list[int], ends: list[int], *, rows: Tensor, number_of: NumberOf, **_: Any
    ) -> None:
        for chunk, start, end in zip(chunks, starts, ends, strict=True):
            held = chunk.tensor.view(end - start, -1)
            held.copy_(rows[start:end])
            seal(held, number_of(start, end))

    def batched_to_gpu(
        self,
        chunks: list[Any],
        starts: list[int],
        ends: list[int],
        *,
        take: Take,
        number_of: NumberOf,
        damage: list[CorruptDonorError],
        **_: Any,
    ) -> None:
        """Raises nothing: LMCache would keep the memory of what it retrieved for good."""
        for chunk, start, end in zip(chunks, starts, ends, strict=True):
            try:
                rows = chunk.tensor.view(end - start, -1)
                check(rows, number_of(start, end))
                take(start, rows)
            except CorruptDonorError as error:
                damage.append(error)
            except RuntimeError as error:  # A server gave something of another size.
                damage.append(CorruptDonorError(Quarantine.TRUNCATED, str(error)))


class _Chunks:
    """Tokens to keys. LMCache's own takes its seed from vLLM's, and resets that: exact prefixes would be lost by it."""

    def __init__(self, key_type: Any) -> None:
        self._key_type = key_type

    def process_tokens(
        self,
        tokens: Sequence[int],
        hashes: None = None,
        offsets: None = None,
        mask: Tensor | None = None,
        make_key: bool = True,
        request_configs: dict[str, str] | None = None,
    ) -> Iterator[tuple[int, int, Any]]:
        skipped = 0 if mask is None else int(mask.numel() - mask.sum())
        before = b""
        for start in range(0, len(tokens), CHUNK_TOKENS):
            end = min(start + CHUNK_TOKENS, len(tokens))
            content = np.asarray(tokens[start:end], dtype="<i8").tobytes()
            before = hashlib.blake2b(before + content, digest_size=8, person=b"semblend-chunk1").digest()
            if start >= skipped:
                key = self._key_type(_MODEL, 1, 0, int.from_bytes(before, "big"), torch.uint8, request_configs)
                yield start, end, key


def find_lmcache() -> None:
    """MissingExtraError where LMCache is not installed."""
    os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")  # It would report to its makers.
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "WARNING")  # It tells of every donor it stores.
    require_extra("lmcache.v1.cache_engine", distribution="semblend-core", extra="lmcache")


def open_engine(url: str, local_bytes: int, row_bytes: int) -> Any:
    find_lmcache()
    started = multiprocessing.get_start_method(allow_none=True)
    engines = require_extra("lmcache.v1.cache_engine", distribution="semblend-core", extra="lmcache")
    configs = require_extra("lmcache.v1.config", distribution="semblend-core", extra="lmcache")
    metadatas = require_extra("lmcache.v1.metadata", distribution="semblend-core", extra="lmcache")
    keys = require_extra("lmcache.utils", distribution="semblend-core", extra="lmcache")
    config = configs.LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK_TOKENS,
        local_cpu=True,
        max_local_cpu_size=local_bytes / 1024**3,
        remote_url=url or None,
        remote_serde="naive" if url else None,
        save_unfull_chunk=True,
    )
    metadata = metadatas.LMCacheMetadata(
        model_name=_MODEL,
        world_size=1,
        local_world_size=1,
        worker_id=0,
        local_worker_id=0,
        kv_dtype=torch.uint8,
        kv_shape=(1, 1, CHUNK_TOKENS, 1, row_bytes),
        chunk_size=CHUNK_TOKENS,
    )
    engine = engines.LMCacheEngine(
        config, metadata, _Chunks(keys.CacheEngineKey), _Rows(), lambda *_: None, lambda held, _: held
    )
    engine.post_init()
    if started is not None:  # It changes how the engine around us starts its processes.
        multiprocessing.set_start_method(started, force=True)
    return engine


def client_of(connection: Any) -> Any:
    """The connection itself, without what measures it."""
    return getattr(connection, "_connector", connection)


async def delete_at(connection: Any, key: Any) -> None:
    """LMCache has no way to delete from a server: Redis is told itself, another gets next to nothing in its place."""
    client = client_of(connection)
    redis = getattr(client, "connection", None)
    if redis is not None and hasattr(redis, "delete"):
        name = key.to_string()
        await redis.delete(f"{name}metadata", f"{name}kv_bytes")
    elif await client.exists(key):
        nothing = client.local_cpu_backend.allocate(torch.Size((1, 1, 1, 1)), torch.uint8)
        if nothing is None:
            raise MemoryError("LMCache has no memory to overwrite a donor with")
        try:
            nothing.tensor.zero_()
            await client.put(key, nothing)
        finally:
            nothing.ref_count_down()
