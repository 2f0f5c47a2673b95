"""What a question attends to most, in any head and at any of its tokens, over all layers that are looked at."""

from __future__ import annotations

import pytest
import torch

from semblend_core.kv import QuestionAttention, question_attention

TOKENS, Q_HEADS, KV_HEADS, DIM = 40, 6, 2, 8
SCALE = DIM**-0.5


def drawn(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(5, Q_HEADS, DIM, generator=generator),
        torch.randn(TOKENS, KV_HEADS, DIM, generator=generator),
    )


def plainly(queries: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    most = torch.zeros(TOKENS)
    for row, position in enumerate(positions.tolist()):
        for head in range(Q_HEADS):
            seen = keys[: position + 1, head // (Q_HEADS // KV_HEADS)]
            weights = (seen @ queries[row, head] * SCALE).softmax(0)
            most[: position + 1] = torch.maximum(most[: position + 1], weights)
    return most


@pytest.mark.parametrize("at_once", [1 << 24, 2 * Q_HEADS * TOKENS, 1])
def test_the_most_of_any_head_and_token_summed_over_layers(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_attention, "MOST_WEIGHTS", at_once)
    positions = torch.tensor([30, 31, 32, 33, 39])
    attention = QuestionAttention(positions)
    for seed in (1, 2):
        attention.add(*drawn(seed), SCALE)
    assert attention.totals is not None
    assert attention.layers == 2
    torch.testing.assert_close(attention.totals, sum(plainly(*drawn(seed), positions) for seed in (1, 2)))


def test_what_stands_behind_the_question_is_not_seen() -> None:
    queries, keys = drawn(3)
    attention = QuestionAttention(torch.arange(10, 15))
    attention.add(queries, keys, SCALE)
    assert attention.totals is not None
    assert attention.totals[:15].min() > 0
    assert attention.totals[15:].max() == 0
