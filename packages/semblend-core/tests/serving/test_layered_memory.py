"""One memory of layers that turn keys differently does what one memory for each kind does."""

from __future__ import annotations

import numpy as np
import torch

from semblend_core.contract import Span
from semblend_core.kv import DonorKv, LearnedShift, PagedKv, Rotation, indexable
from semblend_core.recompute import ROW_SHIFT
from semblend_core.serving.worker import LayeredMemory, PagedMemory, memory_by_rotation, proof

HEADS, DIM, BLOCK = 2, 16, 8
FAST, SLOW = (
    Rotation.from_config({"model_type": "llama", "head_dim": DIM, "rope_theta": theta}) for theta in (1e4, 1e6)
)
ROTATIONS = (FAST, FAST, SLOW, FAST, SLOW)


def memory_of(layers: list[torch.Tensor]) -> LayeredMemory:
    made = memory_by_rotation(
        layers, ROTATIONS, lambda own, rotation: PagedMemory(PagedKv.from_joined(own, DIM), rotation)
    )
    assert isinstance(made, LayeredMemory)
    return made


def pool() -> list[torch.Tensor]:
    return [torch.randn(12, HEADS, BLOCK, 2 * DIM) for _ in ROTATIONS]


def donor(tokens: int) -> DonorKv:
    return DonorKv(torch.randn(5, tokens, HEADS, DIM), torch.randn(5, tokens, HEADS, DIM))


def test_layers_that_rotate_alike_need_nothing_of_it() -> None:
    made = memory_by_rotation(
        pool(), (FAST,) * 5, lambda own, rotation: PagedMemory(PagedKv.from_joined(own, DIM), rotation)
    )
    assert isinstance(made, PagedMemory)


def test_each_layer_is_turned_by_its_own_rotation() -> None:
    memory, given = memory_of(pool()), donor(20)
    memory.scatter([3, 5, 7], [(given, Span(4, "a", 2, 15))])
    found = memory.gather([3, 5, 7], 24)
    for layer, rotation in enumerate(ROTATIONS):
        assert torch.equal(found.keys[layer, 4:19], rotation.rotate(given.keys[layer, 2:17], 2))
    assert found.values is not None
    assert given.values is not None
    assert torch.equal(found.values[:, 4:19], given.values[:, 2:17])


def test_fp8_of_each_layer_too() -> None:
    fp8 = torch.float8_e4m3fn
    memory = memory_of([layer.to(fp8) for layer in pool()])
    given = DonorKv(*(torch.randn(5, 20, HEADS, DIM).to(fp8) for _ in "kv"))
    memory.scatter([3, 5, 7], [(given, Span(4, "a", 2, 15))])
    found = memory.gather([3, 5, 7], 24)
    for layer, rotation in enumerate(ROTATIONS):
        wanted = rotation.rotate(given.keys[layer, 2:17], 2)
        assert torch.equal(indexable(found.keys[layer, 4:19]), indexable(wanted))


def test_it_tells_the_whole_models_shape() -> None:
    layers = pool()
    memory = memory_of(layers)
    assert (memory.layers, memory.shape.layers, memory.shape.kv_heads) == (5, 5, HEADS)
    assert memory.token_bytes == 5 * HEADS * 2 * DIM * 4
    slots = torch.tensor([0, 9, 30])
    for tensor, keys in zip(layers, memory.keys_at(range(5), slots), strict=True):
        assert torch.equal(keys, tensor[slots // BLOCK, :, slots % BLOCK, :DIM])


def test_the_way_in_is_proved_by_layer() -> None:
    memory = memory_of(pool())
    assert proof.of_the_way_in(memory, ROTATIONS, 0) == ""
    assert "turned by one position" in proof.of_the_way_in(memory, (FAST,) * 5, 0)


def test_a_correction_moves_every_layer_and_leaves_its_rows() -> None:
    memory, given = memory_of(pool()), donor(24)
    blocks, rows = [1, 2, 4], np.arange(0, 24, 3)
    memory.scatter(blocks, [(given, Span(0, "a", 0, 24))])
    correction = memory.correction(blocks, [Span(0, "a", 0, 24)], rows, ROW_SHIFT)
    fresh = DonorKv(given.keys + 1.0, given.values)
    memory.scatter(blocks, [(fresh, Span(int(row), "b", int(row), 1)) for row in rows])
    for layer in range(5):
        before = memory.gather(blocks, 24).keys
        correction.apply(layer)
        after = memory.gather(blocks, 24).keys
        changed = (after != before).any(-1).any(-1)
        assert changed[layer].sum() == 24 - rows.size
        assert not changed[layer, rows].any()
        assert not changed[[other for other in range(5) if other != layer]].any()


def test_a_fitted_correction_is_given_to_each_kind_by_its_layers() -> None:
    memory = memory_of(pool())
    maps = torch.randn(memory.shape.maps)
    memory.learned = learned = LearnedShift(memory.shape, maps, ROW_SHIFT)
    assert memory.learned is learned
    for own, part in memory._parts:
        assert part.learned is not None
        assert torch.equal(part.learned.maps, maps[own])
        assert part.learned.shape == part.shape
    memory.learned = None
    assert all(part.learned is None for _, part in memory._parts)
