"""The self-test accepts KV that turns as the model says, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from semblend_core import SelfTestResult
from semblend_core.kv import PagedKv, Rotation, RotationProof
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
