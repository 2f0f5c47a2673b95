"""The self-test accepts KV that turns as the model says, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from semblend_core.kv import PagedKv, Rotation
from semblend_core.serving.tree import SlotPool

TOKENS = np.arange(200) % 50
ROTATION = Rotation(16, 0, 16, False, 1.0 / 10_000 ** (np.arange(0, 16, 2) / 16))


def failure(pool: SlotPool, slots: torch.Tensor, token_ids: np.ndarray) -> str | None:
    return pool.test_keys(slots, token_ids)


def pool_of(rotation: Rotation, *, latent: bool = False, same_values: bool = True) -> tuple[SlotPool, torch.Tensor]:
    torch.manual_seed(1)
    keys, values = torch.randn(50, 2, 16), torch.randn(50, 2, 16)
    slots = torch.randperm(300)[:200]
    buffer, other = torch.zeros(300, 2, 16), torch.randn(300, 2, 16)
    buffer[slots] = rotation.rotate(keys[TOKENS], np.arange(200))
    if same_values:
        other[slots] = values[TOKENS]
    return SlotPool(PagedKv.from_slots([buffer], [] if latent else [other]), ROTATION), slots


def test_kv_that_turns_with_its_position_passes() -> None:
    assert failure(*pool_of(ROTATION), TOKENS) == ""
    assert failure(*pool_of(ROTATION, latent=True), TOKENS) == ""


def test_a_prompt_without_repeated_tokens_proves_nothing() -> None:
    pool, slots = pool_of(ROTATION)
    assert failure(pool, slots, np.arange(200)) is None


@pytest.mark.parametrize(
    ("frequencies", "interleaved"),
    [(ROTATION.frequencies * 2, False), (ROTATION.frequencies, True), (ROTATION.frequencies * 0, False)],
    ids=["other frequencies", "other pairs", "no rotation at all"],
)
def test_kv_that_turns_otherwise_fails(frequencies: np.ndarray, interleaved: bool) -> None:
    assert "K of layer 0" in str(failure(*pool_of(Rotation(16, 0, 16, interleaved, frequencies)), TOKENS))


def test_values_must_be_those_of_their_tokens() -> None:
    assert "V of layer 0" in str(failure(*pool_of(ROTATION, same_values=False), TOKENS))
