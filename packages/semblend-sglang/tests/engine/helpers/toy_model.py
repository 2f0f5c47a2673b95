"""The model: two lines of arithmetic in SGLang's real pools.

It stores with each token what it is and a number that follows from it and from the number in front of it, read through
the request's slots. So whether KV is that of its token, and whether it was ever computed behind relocated KV, can be
read from any slot at any time. So can the weights that computed it, and the tenant whom it was computed for.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

from semblend_core.kv import Rotation
from semblend_sglang.compat import hooks
from semblend_sglang.worker import looking

HEAD = 8
LATENT = 4
MODULUS = 1_000_003
"""Small enough to be exact in float32."""


def number_behind(number: int, token: int) -> int:
    return (number * 31 + token * 7 + 1) % MODULUS


def exact_numbers(tokens: Any) -> list[int]:
    return list(itertools.accumulate((int(token) for token in tokens), number_behind, initial=0))[1:]


class ToyModel:
    """What it computes is compared with what it should have, for every slot."""

    pool: Any
    rows: Any
    rotation: Rotation
    latent: bool
    weights: int = 0
    """Grows when they are updated."""
    looks_at: tuple[int, ...] = ()
    """Positions of a prompt that its question attends to."""
    stores_by_itself = False
    """Whether it stores KV in a kernel of its own and not through the pool."""

    @staticmethod
    def _new_pool(slots: int, page_size: int, latent: bool) -> Any:
        if latent:
            return MLATokenToKVPool(slots, page_size, torch.float32, LATENT, HEAD, 2, "cpu", False)
        return MHATokenToKVPool(slots, page_size, torch.float32, 1, HEAD, 2, "cpu", False)

    def _compute(self, batch: Any) -> None:
        """The model. Sequences of one request stand in the order of their positions."""
        place = 0
        table = self.rows.req_to_token.numpy()
        for req, row, prefix, length in zip(
            batch.reqs, batch.req_pool_indices.tolist(), batch.prefix_lens, batch.extend_lens, strict=True
        ):
            number = self.numbers_at([int(table[row, prefix - 1])])[0] if prefix else 0
            tokens = batch.input_ids[place : place + length].tolist()
            slots = batch.out_cache_loc[place : place + length].tolist()
            assert table[row, prefix : prefix + length].tolist() == slots, "a token is written to another's slot"
            numbers = list(itertools.accumulate(tokens, number_behind, initial=number))[1:]
            self._write(slots, prefix, tokens, numbers)
            self._sign(slots, self.tenant_of(req))
            place += length
        assert place == len(batch.input_ids)
        self._say_stored(self._queries(batch) if looking._under_way else None)

    def _say_stored(self, queries: Any = None) -> None:
        """As SGLang's pools and models do, layer by layer."""
        for number in range(2):
            layer = SimpleNamespace(layer_id=number, tp_q_head_num=1, qk_head_dim=HEAD, scaling=1.0)
            if not self.stores_by_itself:
                hooks.store_kv(lambda *_: None, self.pool, layer)
            hooks.attend(lambda *_: None, None, queries, layer=layer, save_kv_cache=not self.stores_by_itself)

    def _queries(self, batch: Any) -> torch.Tensor:
        """Each token attends to one of the positions of ``looks_at`` alone, in turns, or else to itself."""
        wanted: list[int] = []
        for row, prefix, length in zip(
            batch.req_pool_indices.tolist(), batch.prefix_lens, batch.extend_lens, strict=True
        ):
            for position in range(prefix, prefix + length):
                seen = [each for each in self.looks_at if each < prefix]
                wanted.append(int(self.rows.req_to_token[row, seen[position % len(seen)] if seen else position]))
        keys: torch.Tensor = self.pool.k_buffer[0][wanted].flatten(1)
        return 1000 * keys

    def _write(self, slots: list[int], first: int, tokens: list[int], numbers: list[int]) -> None:
        keys = torch.stack([self._key_of(token) for token in tokens])
        keys = self.rotation.rotate(keys, np.arange(first, first + len(tokens)))
        if self.latent:
            keys[:, 0], keys[:, 1] = torch.tensor(tokens), 0  # The first layer sees nothing in front of a token.
            self.pool.kv_buffer[0][slots, 0] = keys
            keys[:, 1] = torch.tensor(numbers)
            self.pool.kv_buffer[1][slots, 0] = keys
            return
        for layer in range(2):
            self.pool.k_buffer[layer][slots, 0] = keys
        self.pool.v_buffer[0][slots, 0] = torch.tensor(tokens, dtype=torch.float32)[:, None]
        self.pool.v_buffer[1][slots, 0] = torch.tensor(numbers, dtype=torch.float32)[:, None]

    def tenant_of(self, request: Any) -> int:
        """A number for whom a request is computed."""
        return zlib.crc32(str(request.cache_salt).encode("utf-8", "surrogatepass")) % 1000

    def _sign(self, slots: list[int], tenant: int) -> None:
        first_layer = self.pool.kv_buffer[0] if self.latent else self.pool.v_buffer[0]
        first_layer[slots, 0, 2], first_layer[slots, 0, 3] = self.weights, tenant

    def signed_at(self, slots: list[int]) -> tuple[set[int], set[int]]:
        """The weights and the tenants of what lies in ``slots``."""
        first_layer = self.pool.kv_buffer[0] if self.latent else self.pool.v_buffer[0]
        signs = first_layer[slots, 0, 2:4].to(torch.int64)
        return set(signs[:, 0].tolist()), set(signs[:, 1].tolist())

    @functools.lru_cache(maxsize=65536)  # noqa: B019 - a rig lives as long as its test
    def _key_of(self, token: int) -> torch.Tensor:
        key = torch.randn(self.rotation.key_dim, generator=torch.Generator().manual_seed(token))
        return key / key.norm()  # All equally long, so that who looks for one finds that one.

    def numbers_at(self, slots: list[int]) -> list[int]:
        part = self.pool.kv_buffer[1][slots, 0, 1] if self.latent else self.pool.v_buffer[1][slots, 0, 0]
        return [int(number) for number in part.tolist()]

    def tokens_at(self, slots: list[int]) -> list[int]:
        part = self.pool.kv_buffer[0][slots, 0, 0] if self.latent else self.pool.v_buffer[0][slots, 0, 0]
        return [int(token) for token in part.tolist()]

    def key_error(self, slots: list[int], positions: list[int]) -> float:
        """How far the stored keys are from those that their tokens have at these positions."""
        start = LATENT if self.latent else 0
        buffer = self.pool.kv_buffer[0] if self.latent else self.pool.k_buffer[0]
        fresh = torch.stack([self._key_of(token) for token in self.tokens_at(slots)])
        theirs = self.rotation.rotate(fresh, np.array(positions))[:, start:]
        return float(((buffer[slots, 0, start:] - theirs).norm(dim=1) / theirs.norm(dim=1)).max())
