"""A donor's rows, as LMCache keeps them: bit by bit, and in a few calls however many layers there are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from semblend_core.kv.store.kv_spec import KvSpec, LayerTensors
from semblend_core.kv.store.lmcache_rows import pack, unpack

TOKENS = 40


def spec_of(layers: int = 5, dtype: torch.dtype = torch.bfloat16) -> KvSpec:
    return KvSpec(layers, TOKENS, 2, 8, 6, dtype, first_position=0)


def one_memory(spec: KvSpec) -> list[LayerTensors]:
    keys, values = (noise(spec, (spec.layers, spec.tokens), dim) for dim in spec.dims)
    return [(keys[layer], values[layer]) for layer in range(spec.layers)]


def memory_of_their_own(spec: KvSpec) -> list[LayerTensors]:
    return [(noise(spec, (spec.tokens,), 8), noise(spec, (spec.tokens,), 6)) for _ in range(spec.layers)]


def backwards(spec: KvSpec) -> list[LayerTensors]:
    return one_memory(spec)[::-1]


def unevenly(spec: KvSpec) -> list[LayerTensors]:
    more = one_memory(spec_of(spec.layers + 1, spec.dtype))
    return [*more[:2], *more[3:]]


def of_longer_ones(spec: KvSpec) -> list[LayerTensors]:
    wide = one_memory(KvSpec(spec.layers, spec.tokens, 2, 11, 9, spec.dtype, 0))
    return [(keys[..., 2:10], values[..., 1:7]) for keys, values in wide if values is not None]


def noise(spec: KvSpec, shape: tuple[int, ...], dim: int) -> torch.Tensor:
    return torch.randint(0, 256, (*shape, spec.kv_heads, dim * spec.dtype.itemsize), dtype=torch.uint8).view(spec.dtype)


def same(left: list[LayerTensors], right: list[LayerTensors], tokens: slice = slice(None)) -> bool:
    pairs = [pair for ours, theirs in zip(left, right, strict=True) for pair in zip(ours, theirs, strict=True)]
    return all(torch.equal(raw(a)[tokens], raw(b)[tokens]) for a, b in pairs)


def raw(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("target", [one_memory, memory_of_their_own, backwards, unevenly, of_longer_ones])
@pytest.mark.parametrize("source", [one_memory, memory_of_their_own, backwards, unevenly, of_longer_ones])
def test_wherever_layers_lie_they_come_back_bit_by_bit(source: Any, target: Any, dtype: torch.dtype) -> None:
    spec = spec_of(dtype=dtype)
    given, wanted = source(spec), target(spec)
    before = [tuple(raw(each).clone() for each in layer) for layer in wanted]
    rows = pack(spec, given)
    unpack(rows[7:20], spec, wanted, 7)
    assert same(given, wanted, slice(7, 20))
    for layer, untouched in zip(wanted, before, strict=True):
        for tensor, was in zip(layer, untouched, strict=True):
            assert torch.equal(raw(tensor)[:7], was[:7])
            assert torch.equal(raw(tensor)[20:], was[20:])


def test_one_layer_alone() -> None:
    spec = spec_of(1)
    given, wanted = one_memory(spec), one_memory(spec)
    unpack(pack(spec, given), spec, wanted, 0)
    assert same(given, wanted)


class Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_forty_layers_take_no_more_calls_than_two() -> None:
    """After each call another thread may keep the interpreter for 5 ms, so their number is what a busy engine pays."""
    counted = []
    for layers in (2, 40):
        spec = spec_of(layers)
        given, wanted = one_memory(spec), one_memory(spec)
        with Calls() as calls:
            unpack(pack(spec, given), spec, wanted, 0)
        counted.append(calls.count)
    assert counted[0] == counted[1] < 40
