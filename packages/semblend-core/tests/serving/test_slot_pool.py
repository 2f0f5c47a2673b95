"""KV moves as the model says; the self-test accepts KV that turns so, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from semblend_core import SelfTestResult, Span
from semblend_core.kv import InvalidKvError, PagedKv, Rotation, RotationProof, SlotTable
from semblend_core.recompute import ROW_SHIFT
from semblend_core.serving.tree import SlotPool

TOKENS = np.arange(200) % 50
ROTATION = Rotation(16, 0, 16, False, 1.0 / 10_000 ** (np.arange(0, 16, 2) / 16))


def pool_of(rotation: Rotation, *, latent: bool = False, same_values: bool = True) -> tuple[SlotPool, torch.Tensor]:
    torch.manual_seed(1)
    keys, values = torch.randn(50, 2, 16), torch.randn(50, 2, 16)
    slots = torch.randperm(300)[:200]
    buffer, other = torch.zeros(300, 2, 16), torch.randn(300, 2, 16)
    buffer[slots] = rotation.rotate(keys[TOKENS], np.arange(200))
    if same_values:
        other[slots] = values[TOKENS]
    return SlotPool(PagedKv.from_slots([buffer], [] if latent else [other]), ROTATION), slots


def judged(pool: SlotPool, slots: torch.Tensor, tokens: np.ndarray = TOKENS) -> SelfTestResult:
    """After as many such prompts as a failure takes."""
    proof = RotationProof(pool.rotation)
    for _ in range(3):
        pool.test_keys(proof, lambda: slots, tokens)
    return proof.result


@pytest.mark.parametrize("latent", [False, True])
def test_kv_that_turns_with_its_position_passes_by_one_prompt(latent: bool) -> None:
    pool, slots = pool_of(ROTATION, latent=latent)
    result = pool.test_keys(RotationProof(ROTATION), lambda: slots, TOKENS)
    assert result is not None
    assert result.passed


def test_a_prompt_without_repeated_tokens_proves_nothing_and_is_not_read() -> None:
    pool, _ = pool_of(ROTATION)
    assert pool.test_keys(RotationProof(ROTATION), lambda: pytest.fail("slots were read"), np.arange(200)) is None


@pytest.mark.parametrize(
    ("frequencies", "interleaved"),
    [(ROTATION.frequencies * 2, False), (ROTATION.frequencies, True), (ROTATION.frequencies * 0, False)],
    ids=["other frequencies", "other pairs", "no rotation at all"],
)
def test_kv_that_turns_otherwise_fails(frequencies: np.ndarray, interleaved: bool) -> None:
    result = judged(*pool_of(Rotation(16, 0, 16, interleaved, frequencies)))
    assert result.failed
    assert "K of layer 0" in result.says


def test_values_must_be_those_of_their_tokens() -> None:
    result = judged(*pool_of(ROTATION, same_values=False))
    assert result.failed
    assert "V of layer 0" in result.says


# --- Layers that turn keys differently ---------------------------------------------------------------------------

SLOWER = Rotation(16, 0, 16, False, 1.0 / 1_000_000 ** (np.arange(0, 16, 2) / 16))
BY_LAYER = (ROTATION, SLOWER, ROTATION)


def layered_pool() -> tuple[SlotPool, list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(2)
    keys, values = ([torch.randn(300, 2, 16) for _ in BY_LAYER] for _ in range(2))
    return SlotPool(PagedKv.from_slots(keys, values), BY_LAYER), keys, values


@pytest.mark.parametrize("kept", [False, True], ids=["from the pool", "from the donor store"])
def test_each_layer_is_turned_by_its_own_rotation(kept: bool) -> None:
    pool, keys, values = layered_pool()
    assert not pool.turns_alike
    source, target, span = torch.arange(40), torch.arange(100, 140), Span(7, "donor", 2, 30)
    if kept:
        pool.bring([(pool.take_slots(source), span)], SlotTable.of_slots(target.numpy()))
    else:
        pool.move_slots([span], {"donor": source}, target, first_position=0)
    for layer, rotation in enumerate(BY_LAYER):
        assert torch.equal(keys[layer][107:137], rotation.rotate(keys[layer][2:32], 5))
        assert torch.equal(values[layer][107:137], values[layer][2:32])


def test_a_pool_whose_layers_turn_differently_starts_and_is_not_corrected() -> None:
    pool, _, _ = layered_pool()
    pool.warm_up()
    with pytest.raises(InvalidKvError, match="turn keys differently"):
        pool.correction(ROW_SHIFT, [Span(0, "donor", 0, 4)], np.arange(1), SlotTable.of_slots(np.arange(4)))


@pytest.mark.parametrize("wrong", [False, True])
def test_the_first_layer_of_each_kind_is_tested(wrong: bool) -> None:
    pool, keys, values = layered_pool()
    slots = torch.randperm(300)[:200]
    for layer, rotation in enumerate(BY_LAYER):
        turn = ROTATION if wrong else rotation
        keys[layer][slots] = turn.rotate(torch.randn(50, 2, 16)[TOKENS], np.arange(200))
        values[layer][slots] = torch.randn(50, 2, 16)[TOKENS]
    proof = RotationProof(*pool.rotations)
    for _ in range(3):
        pool.test_keys(proof, lambda: slots, TOKENS)
    assert proof.result.failed if wrong else proof.result.passed
    assert "in layer 1" in proof.result.says
