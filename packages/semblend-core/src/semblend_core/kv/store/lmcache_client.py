"""Donors' rows in LMCache, through the client that LMCache's own engines use (extra ``lmcache``)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semblend_core.contract import TokenIds
from semblend_core.kv.store.kv_spec import TokenRange
from semblend_core.kv.store.lmcache_calls import BoundedCalls
from semblend_core.kv.store.lmcache_engine import Take, client_of, delete_at, open_engine
from semblend_core.kv.store.lmcache_rows import CHUNK_TOKENS
from semblend_core.kv.store.vocabulary import (
    CorruptDonorError,
    LostDonorError,
    Quarantine,
    StoreDecline,
    StoreFaultError,
)

OPEN_S, STORE_S, LOAD_S, ASK_S = 60.0, 30.0, 10.0, 5.0
"""How long a call may take."""
KEPT_S = 10.0
"""How long a server may take to find what it was sent, and to answer: nobody waits for it."""
ATTEMPTS = 3
"""Connections may have broken since they were last used. From the second on they are new."""
_REMOTE = "RemoteBackend"


@dataclass(frozen=True, slots=True, eq=False)
class LmcacheKey:
    """All that LMCache's key is made of."""

    namespace: str
    donor: str
    token_ids: TokenIds

    @property
    def configs(self) -> dict[str, str]:
        """LMCache makes such tags part of its key: another namespace, so another tenant, has another key."""
        return {"lmcache.tag.ns": self.namespace, "lmcache.tag.donor": self.donor}

    def number_of(self, start: int, end: int) -> int:
        """Of a chunk. Others have another, but for one in 2**32."""
        whose = f"{self.namespace}\0{self.donor}\0{start}\0".encode()
        return zlib.crc32(whose + self.token_ids[start:end].astype("<i8").tobytes())


class LmcacheClient:
    """Any thread. StoreFaultError where LMCache does not do what it is asked to."""

    def __init__(self, url: str, local_bytes: int, row_bytes: int) -> None:
        """``url``: ``lm://`` or ``redis://``; empty: in this process's memory alone."""
        self._url, self._row_bytes = url, row_bytes
        self._lookups = itertools.count()
        self._calls = BoundedCalls()
        self._must_reconnect = False
        self._engine: Any = self._calls.call(lambda: open_engine(url, local_bytes, row_bytes), OPEN_S)

    def store(self, key: LmcacheKey, rows: Tensor) -> None:
        """Returns when LMCache finds all of them."""
        self._calls.call(lambda: self._store(key, rows), STORE_S)

    def find(self, key: LmcacheKey) -> int:
        """How many of the donor's tokens are there, from the first on."""
        return self._calls.call(lambda: self._find(key), ASK_S)

    def load(self, key: LmcacheKey, ranges: Sequence[TokenRange], take: Take) -> None:
        """LostDonorError where it is there no longer, CorruptDonorError where it is not what was stored."""
        self._calls.call(lambda: self._load(key, ranges, take), LOAD_S)

    def remove(self, key: LmcacheKey) -> None:
        self._calls.call(lambda: self._remove(key), ASK_S)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._calls.call(self._close, ASK_S)

    # --- On the client's thread --------------------------------------------------------------------------------------

    def _store(self, key: LmcacheKey, rows: Tensor) -> None:
        self._reconnect()
        tokens = key.token_ids.tolist()
        why: Exception | None = None
        for _ in range(ATTEMPTS):
            self._engine.store(tokens=tokens, rows=rows, number_of=key.number_of, request_configs=key.configs)
            deadline, wait_s = time.monotonic() + KEPT_S / ATTEMPTS, 0.001
            while True:
                if self._is_kept(key, tokens):
                    return
                why = self._why_missing(key, tokens, KEPT_S)
                if isinstance(why, StoreFaultError) or time.monotonic() > deadline:
                    break
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, 0.05)
            if isinstance(why, StoreFaultError) or self._remote is None:
                break
        self._forget_here(key)
        raise StoreFaultError(StoreDecline.LMCACHE_ERROR, f"LMCache did not keep a donor: {why}")

    def _is_kept(self, key: LmcacheKey, tokens: list[int]) -> bool:
        # Where there is a server, what lies in this process's memory alone is no answer.
        where = None if self._remote is None else [_REMOTE]
        return bool(self._engine.lookup(tokens=tokens, search_range=where, request_configs=key.configs) == len(tokens))

    def _find(self, key: LmcacheKey) -> int:
        self._reconnect()
        return int(self._engine.lookup(tokens=key.token_ids.tolist(), request_configs=key.configs))

    def _load(self, key: LmcacheKey, ranges: Sequence[TokenRange], take: Take) -> None:
        self._reconnect()
        tokens = key.token_ids.tolist()[: _chunk_end(max(stop for _, stop in ranges))]
        for _ in range(ATTEMPTS):
            if self._try_to_load(key, tokens, ranges, take):
                return
            why = self._why_missing(key, tokens, ASK_S / 2)
            if why is not None:
                raise why
            self._must_reconnect = True
            self._reconnect()
        # As where another wrote something of another size there.
        raise CorruptDonorError(Quarantine.TRUNCATED, f"LMCache{self._place} has it and cannot read it")

    def _try_to_load(self, key: LmcacheKey, tokens: list[int], ranges: Sequence[TokenRange], take: Take) -> bool:
        name = f"semblend-{next(self._lookups)}"
        try:
            found = self._engine.lookup(tokens=tokens, lookup_id=name, pin=True, request_configs=key.configs)
            return found == len(tokens) and all(
                self._retrieve(name, key, tokens[: _chunk_end(stop)], start // CHUNK_TOKENS * CHUNK_TOKENS, take)
                for start, stop in ranges
            )
        finally:
            self._engine.lookup_unpin(name)

    def _retrieve(self, name: str, key: LmcacheKey, tokens: list[int], first: int, take: Take) -> bool:
        wanted = torch.arange(len(tokens)) >= first
        damage: list[CorruptDonorError] = []
        came = self._engine.retrieve(
            tokens=tokens,
            mask=wanted,
            take=take,
            number_of=key.number_of,
            damage=damage,
            req_id=name,
            request_configs=key.configs,
        )
        if damage:
            raise damage[0]
        return bool(came[first:].all())

    def _remove(self, key: LmcacheKey) -> None:
        self._reconnect()
        self._forget_here(key)
        remote = self._remote
        if remote is None:
            return
        for _, _, each in self._engine.token_database.process_tokens(
            key.token_ids.tolist(), request_configs=key.configs
        ):
            self._on_loop(delete_at(remote.connection, each), ASK_S)

    def _forget_here(self, key: LmcacheKey) -> None:
        local = self._engine.storage_manager.storage_backends.get("LocalCPUBackend")
        for _, _, each in self._engine.token_database.process_tokens(
            key.token_ids.tolist(), request_configs=key.configs
        ):
            if local is not None:
                local.remove(each)

    def _why_missing(self, key: LmcacheKey, tokens: list[int], timeout_s: float) -> Exception | None:
        """Why LMCache did not find or give ``tokens``; None where the server has them all.

        LMCache says of a server that does not answer that it holds nothing, and so it does when a connection has broken
        that it could make anew. So the server itself is asked.
        """
        remote = self._remote
        if remote is None:
            return LostDonorError("LMCache no longer has all of it")
        try:
            for _, _, each in self._engine.token_database.process_tokens(tokens, request_configs=key.configs):
                if not self._on_loop(remote.connection.exists(each), timeout_s):
                    return LostDonorError(f"LMCache{self._place} no longer has all of it")
        except Exception as error:
            self._must_reconnect = True
            told = f"LMCache{self._place} does not answer: {str(error) or type(error).__name__}"
            return StoreFaultError(StoreDecline.LMCACHE_ERROR, told)
        return None

    def _reconnect(self) -> None:
        """None looks again for a server by itself. ``lm://`` keeps a broken connection for good.

        ``redis://`` has four tasks that do its work, and each call that is given up while it is under way ends one.
        """
        remote = self._remote
        if remote is None or not (self._must_reconnect or remote.connection is None):
            return
        before, remote.connection, remote.failure_time = remote.connection, None, float("-inf")
        remote.init_connection()
        self._must_reconnect = False
        pool = getattr(getattr(client_of(before), "connection", None), "connection_pool", None)
        if pool is not None:
            with contextlib.suppress(Exception):
                self._on_loop(pool.disconnect(), ASK_S / 5)

    def _on_loop(self, coroutine: Any, timeout_s: float) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._remote.loop).result(timeout_s)

    @property
    def _remote(self) -> Any:
        return self._engine.storage_manager.storage_backends.get(_REMOTE)

    @property
    def _place(self) -> str:
        return f" at {self._url}" if self._url else ""

    def _close(self) -> None:
        # Closing LMCache's client for Redis waits for its own loop to end, on that loop: for ever.
        self._engine.storage_manager.storage_backends.pop(_REMOTE, None)
        self._engine.close()


def _chunk_end(stop: int) -> int:
    """The end of the chunk that token ``stop - 1`` lies in."""
    return -(-stop // CHUNK_TOKENS) * CHUNK_TOKENS
