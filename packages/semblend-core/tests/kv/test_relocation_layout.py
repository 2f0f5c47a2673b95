"""Views that a kernel could not walk safely are refused where they are made, with what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from semblend_core.kv.donor_kv import InvalidKvError
from semblend_core.kv.layout import PagedKv

E4M3 = torch.float8_e4m3fn


def views(*shape: int, dtype: torch.dtype = torch.float32, layers: int = 2) -> tuple[torch.Tensor, ...]:
    return tuple(torch.zeros(shape, dtype=dtype) for _ in range(layers))


GOOD = views(4, 8, 2, 32)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: PagedKv(()), "at least one layer"),
        (lambda: PagedKv.from_joined([], 8), "at least one layer"),
        (
            lambda: PagedKv(views(8, 2, 32)),
            "keys of layer 0 must be [blocks, block_size, kv_heads, dim], got (8, 2, 32)",
        ),
        (lambda: PagedKv((GOOD[0], torch.zeros(4, 8, 2, 16))), "keys of layer 1 are (4, 8, 2, 16)"),
        (lambda: PagedKv((GOOD[0], torch.zeros(4, 2, 8, 32).transpose(1, 2))), "with strides (512, 32, 256, 1)"),
        (lambda: PagedKv((GOOD[0], GOOD[1].half())), "keys of layer 1 are torch.float16"),
        (lambda: PagedKv((GOOD[0], GOOD[1].to("meta"))), "on meta"),
        (lambda: PagedKv(tuple(view.transpose(2, 3) for view in GOOD)), "last dimension of keys must be contiguous"),
        (lambda: PagedKv(views(4, 8, 2, 32, dtype=torch.uint8)), "view fp8 bytes as torch.float8_e4m3fn"),
        (lambda: PagedKv(views(4, 8, 2, 32, dtype=torch.float64)), "keys of torch.float64 cannot be moved"),
        (lambda: PagedKv(views(0, 8, 2, 32)), "keys (0, 8, 2, 32) hold nothing"),
        (lambda: PagedKv(GOOD, GOOD[:1]), "2 layers of keys, but 1 of values"),
        (lambda: PagedKv(GOOD, views(4, 8, 1, 32)), "values (4, 8, 1, 32) do not go with keys"),
        (lambda: PagedKv(GOOD, views(4, 8, 2, 32, dtype=torch.float16)), "as torch.float16, keys on cpu"),
        (lambda: PagedKv(GOOD, key_scales=(1.0, 1.0)), "key_scales go with fp8 storage, this pool is torch.float32"),
        (lambda: PagedKv(views(4, 8, 2, 32, dtype=E4M3)).with_scales((1.0,)), "key_scales: 1 of them for 2 layers"),
        (lambda: PagedKv(views(4, 8, 2, 32, dtype=E4M3)).with_scales(None, (1.0, 0.0)), "positive and finite"),
        (lambda: PagedKv.from_joined(views(4, 2, 8, 64), 64), "key_dim 64 does not split rows of 64"),
        (lambda: PagedKv.from_stacked(views(3, 4, 8, 2, 32), 0), "axis 0 of (3, 4, 8, 2, 32) does not hold K and V"),
        (lambda: PagedKv.from_stacked(views(2, 4, 8, 2, 32), 2), "axis 2"),
        (lambda: PagedKv.from_slots(views(30, 2, 32), views(30, 2, 32), page_size=16), "page_size 16 does not divide"),
        (lambda: PagedKv.from_latent(GOOD), "must be [blocks, block_size, kv_lora_rank + qk_rope_head_dim]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_views_that_do_not_fit_are_refused(make: Callable[[], PagedKv], named: str) -> None:
    with pytest.raises(InvalidKvError, match=re.escape(named)):
        make()


def test_views_share_the_engines_memory() -> None:
    layers = views(4, 2, 8, 96)
    pool = PagedKv.from_joined(layers, 64)
    assert (pool.layers, pool.block_size, pool.slots) == (2, 8, 32)
    assert (pool.keys[0].shape, pool.values[0].shape) == ((4, 8, 2, 64), (4, 8, 2, 32))
    pool.keys[1][3, 5, 1, 7] = 1.0
    pool.values[1][2, 4, 0, 3] = 2.0
    assert layers[1][3, 1, 5, 7] == 1.0
    assert layers[1][2, 0, 4, 64 + 3] == 2.0


def test_a_page_does_not_change_where_a_slot_lies() -> None:
    buffers = [torch.arange(32 * 2 * 4.0).view(32, 2, 4)]
    for page_size in (1, 4, 16):
        pool = PagedKv.from_slots(buffers, buffers, page_size=page_size)
        block, offset = divmod(21, page_size)
        assert torch.equal(pool.keys[0][block, offset], buffers[0][21])
