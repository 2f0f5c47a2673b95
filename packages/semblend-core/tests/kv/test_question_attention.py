"""What each head of a question attends to most, at any of its tokens, over all heads and layers that are looked at."""

from __future__ import annotations

import numpy as np
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
    most = torch.zeros(queries.shape[1], TOKENS)
    shared = queries.shape[1] // keys.shape[1]
    for row, position in enumerate(positions.tolist()):
        for head in range(queries.shape[1]):
            seen = keys[: position + 1, head // shared]
            weights = (seen @ queries[row, head] * SCALE).softmax(0)
            most[head, : position + 1] = torch.maximum(most[head, : position + 1], weights)
    return most.sum(0)


@pytest.mark.parametrize("first", [0, 17, 30])
@pytest.mark.parametrize("at_once", [1 << 24, 2 * Q_HEADS * TOKENS, 1])
def test_each_heads_most_is_added_up_over_heads_and_layers(
    at_once: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(question_attention, "MOST_WEIGHTS", at_once)
    positions = torch.tensor([30, 31, 32, 33, 39])
    attention = QuestionAttention(positions, range(1, 3), first)
    for layer in attention.layers:
        attention.add(layer, *drawn(layer), SCALE)
    scores = attention.scores()
    assert scores is not None
    assert scores.dtype == np.float32
    expected = plainly(*drawn(1), positions) + plainly(*drawn(2), positions)
    np.testing.assert_allclose(scores, expected.numpy(), rtol=1e-5)


def test_what_ranks_with_some_of_the_heads_see_adds_up() -> None:
    positions, (queries, keys) = torch.arange(30, 35), drawn(1)
    shared, told = Q_HEADS // KV_HEADS, []
    for rank in range(KV_HEADS):
        part = QuestionAttention(positions, range(1))
        part.add(0, queries[:, shared * rank : shared * (rank + 1)], keys[:, rank : rank + 1], SCALE)
        told.append(part.scores())
    whole = QuestionAttention(positions, range(1))
    whole.add(0, queries, keys, SCALE)
    np.testing.assert_allclose(np.sum(told, axis=0), whole.scores(), rtol=1e-5)


def test_what_stands_behind_the_question_is_not_seen() -> None:
    attention = QuestionAttention(torch.arange(10, 15), range(1))
    attention.add(0, *drawn(3), SCALE)
    scores = attention.scores()
    assert scores is not None
    assert scores[:15].min() > 0
    assert scores[15:].max() == 0


@pytest.mark.parametrize("seen", [(), (1,), (1, 1), (1, 2, 2), (2, 3)])
def test_unless_every_layer_was_seen_once_there_are_no_scores(seen: tuple[int, ...]) -> None:
    attention = QuestionAttention(torch.arange(30, 35), range(1, 3))
    for layer in seen:
        attention.add(layer, *drawn(layer), SCALE)
    assert attention.scores() is None


def test_nor_are_there_where_a_key_is_no_number() -> None:
    queries, keys = drawn(3)
    keys[7] = torch.nan
    attention = QuestionAttention(torch.arange(30, 35), range(1))
    attention.add(0, queries, keys, SCALE)
    assert attention.scores() is None
