"""Donors of any bit pattern, and what is read back of them."""

from __future__ import annotations

import torch

from semblend_core import Namespace
from semblend_core.kv import DonorKv, DonorStore


def namespace_of(salt: str | None = None, rank: int = 0) -> Namespace:
    return Namespace(
        model="model",
        revision="r",
        tokenizer="t",
        dtype="bfloat16",
        kv_layout="nhd",
        block_size=16,
        adapter=None,
        tensor_parallel_size=2,
        tensor_parallel_rank=rank,
        salt=salt,
    )


def make_kv(seed: int = 0, tokens: int = 700, dtype: torch.dtype = torch.bfloat16, values: bool = True) -> DonorKv:
    """3 layers, 2 heads, 8 and 6 numbers each."""
    generator = torch.Generator().manual_seed(seed)

    def noise(dim: int) -> torch.Tensor:
        raw = torch.randint(0, 256, (3, tokens, 2, dim * dtype.itemsize), dtype=torch.uint8, generator=generator)
        return raw.view(dtype)

    return DonorKv(noise(8), noise(6) if values else None, first_position=3)


def same_bytes(left: DonorKv, right: DonorKv, start: int = 0, stop: int | None = None) -> bool:
    """Whether ``left`` is tokens ``start`` to ``stop`` of ``right``."""
    stop = right.tokens if stop is None else stop

    def equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
        if a is None or b is None:
            return a is b
        b = b[:, start:stop]
        return a.shape == b.shape and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))

    return left.first_position == right.first_position + start and all(
        (equal(left.keys, right.keys), equal(left.values, right.values))
    )


def keep(store: DonorStore, donor_id: str, kv: DonorKv, salt: str | None = None) -> list[str]:
    """Why it was not kept; empty when it was."""
    declined: list[str] = []
    result = store.put(
        namespace_of(salt),
        donor_id,
        kv,
        token_ids=tokens_of(donor_id, kv.tokens),
        on_declined=lambda _, reason: declined.append(str(reason)),
    )
    assert result.accepted, result.reason
    assert store.flush(120)
    return declined


def tokens_of(donor_id: str, tokens: int) -> list[int]:
    return [sum(donor_id.encode()) + number for number in range(tokens)]


def load(store: DonorStore, donor_id: str, ranges: list[tuple[int, int]], salt: str | None = None) -> list[DonorKv]:
    """Raises TransferFailedError."""
    handle = store.acquire(namespace_of(salt), donor_id)
    assert handle is not None, "the donor is not visible"
    with handle:
        return list(store.load(handle, ranges).result(30))
