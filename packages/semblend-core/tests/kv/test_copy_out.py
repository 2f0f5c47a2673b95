"""Sequences copied out of a pool, with the bits that lie there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import numpy as np
import pytest
import torch

from semblend_core.kv import InvalidKvError, PagedKv, Rotation, SlotTable, indexable
from semblend_core.kv import pool as module
from semblend_core.kv.pool import KvPool

LAYERS, BLOCKS, BLOCK, HEADS, DIM = 3, 12, 8, 2, 16
ORDER = np.array([7, 2, 11, 0, 5, 3])
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(params=["torch", "interpreter", pytest.param("cuda", marks=needs_gpu)])
def device(request: pytest.FixtureRequest, interpret: Callable[..., ModuleType]) -> Iterator[torch.device]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "interpreter":
            kernel = interpret("triton_rows", "triton_relocation")
            patch.setattr(module, "has_kernel", lambda *_: True)
            patch.setitem(sys.modules, "semblend_core.kv.triton_relocation", kernel)
        yield torch.device("cuda" if request.param == "cuda" else "cpu")


def joined(device: torch.device, dtype: torch.dtype) -> PagedKv:
    return PagedKv.from_joined([noise(device, dtype, BLOCKS, HEADS, BLOCK, 2 * DIM) for _ in range(LAYERS)], DIM)


def stacked(axis: int) -> Callable[[torch.device, torch.dtype], PagedKv]:
    shape = (2, BLOCKS) if axis == 0 else (BLOCKS, 2)
    return lambda device, dtype: PagedKv.from_stacked(
        [noise(device, dtype, *shape, BLOCK, HEADS, DIM) for _ in range(LAYERS)], axis
    )


def latent(device: torch.device, dtype: torch.dtype) -> PagedKv:
    return PagedKv.from_latent([noise(device, dtype, BLOCKS, BLOCK, DIM) for _ in range(LAYERS)])


def noise(device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape).to(dtype).to(device)


POOLS = {"joined": joined, "stacked outside": stacked(0), "stacked inside": stacked(1), "latent": latent}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("pool", POOLS)
def test_a_sequence_is_what_lies_in_its_blocks(device: torch.device, pool: str, dtype: torch.dtype) -> None:
    views = POOLS[pool](device, dtype)
    rotation = Rotation.from_config({"model_type": "llama", "head_dim": DIM})
    if dtype == torch.float8_e4m3fn:  # Bytes are copied, whatever they mean.
        views = views.with_scales((0.3,) * LAYERS, (0.7,) * LAYERS if views.values else None)
    copies = KvPool(views, rotation)
    for tokens in (1, 8, 13, 48):
        donor = copies.take(SlotTable(ORDER, BLOCK), tokens)
        for parts, copied in ((views.keys, donor.keys), (views.values, donor.values)):
            for layer, view in enumerate(parts):
                assert copied is not None
                assert torch.equal(indexable(copied[layer]), indexable(view)[ORDER].flatten(0, 1)[:tokens])


@pytest.mark.parametrize(("blocks", "tokens"), [([1, 2], 17), ([1, BLOCKS], 16), ([-1, 2], 16)])
def test_what_is_not_in_the_pool_is_refused(device: torch.device, blocks: list[int], tokens: int) -> None:
    copies = KvPool(joined(device, torch.float32), Rotation.from_config({"model_type": "llama", "head_dim": DIM}))
    with pytest.raises(InvalidKvError):
        copies.take(SlotTable(np.array(blocks), BLOCK), tokens)
