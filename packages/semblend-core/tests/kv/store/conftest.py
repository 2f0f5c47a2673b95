"""Real tensors, real stores, closed after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from semblend_core import Namespace
from semblend_core.kv.donor_kv import DonorKv
from semblend_core.kv.store import DonorStore, StoreOptions

MIB = 1024**2


def make_kv(
    seed: int = 0,
    tokens: int = 40,
    dtype: torch.dtype = torch.bfloat16,
    values: bool = True,
    first_position: int = 0,
) -> DonorKv:
    """Any bit pattern, so that nothing survives a conversion unnoticed. 3 layers, 2 heads, 8 and 6 numbers each."""
    generator = torch.Generator().manual_seed(seed)

    def noise(dim: int) -> torch.Tensor:
        raw = torch.randint(0, 256, (3, tokens, 2, dim * dtype.itemsize), dtype=torch.uint8, generator=generator)
        return raw.view(dtype)

    return DonorKv(noise(8), noise(6) if values else None, first_position)


def same_bytes(left: DonorKv, right: DonorKv) -> bool:
    def equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
        if a is None or b is None:
            return a is b
        return a.dtype == b.dtype and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))

    return equal(left.keys, right.keys) and equal(left.values, right.values)


def namespace_of(model: str = "model", rank: int = 0, salt: str | None = None) -> Namespace:
    return Namespace(
        model=model,
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


def read(store: DonorStore, namespace: Namespace, donor_id: str) -> DonorKv:
    handle = store.acquire(namespace, donor_id)
    assert handle is not None
    with handle:
        (part,) = store.load(handle).result(30)
    return part


class Kit:
    """What the tests share: pytest's import mode lets them import nothing from each other."""

    kv = staticmethod(make_kv)
    same = staticmethod(same_bytes)
    namespace = staticmethod(namespace_of)
    read = staticmethod(read)


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    return Kit


@pytest.fixture
def namespace() -> Namespace:
    return namespace_of()


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[..., DonorStore]]:
    """Open a store with only the tiers that are named; ``disk_path`` is given."""
    stores: list[DonorStore] = []

    def build(*, store: dict[str, Any] | None = None, **options: Any) -> DonorStore:
        chosen = {"host_bytes": 0, "host_slab_bytes": MIB, "disk_path": tmp_path / "kv", **options}
        stores.append(DonorStore(StoreOptions(**chosen), device="cpu", **(store or {})))
        return stores[-1]

    yield build
    for store in stores:
        assert store.close(30)
        store.check_integrity()
