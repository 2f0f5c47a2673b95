"""What each head of a question attends to most, at any of its tokens, over all heads and layers that are looked at."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

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


def drawn_keys(layers: Iterable[int]) -> Iterator[torch.Tensor]:
    return (drawn(layer)[1] for layer in layers)


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
@pytest.mark.parametrize("most", [1 << 26, 2 * TOKENS * (2 * 5 * Q_HEADS + KV_HEADS * DIM), 3000, 1])
@pytest.mark.parametrize("kept", [1 << 22, 2 * 5 * Q_HEADS * DIM * 4, 1], ids=["all", "two", "one"])
def test_each_heads_most_is_added_up_over_heads_and_layers(
    kept: int, most: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All layers at once, two of them, one by some of its rows, and row by row."""
    monkeypatch.setattr(question_attention, "MOST_NUMBERS", most)
    monkeypatch.setattr(question_attention, "LEAST_WEIGHTS", 1)
    monkeypatch.setattr(question_attention, "MOST_KEPT", kept)
    positions = torch.tensor([30, 31, 32, 33, 39])
    attention = QuestionAttention(positions, range(1, 6), drawn_keys, first)
    for layer in attention.layers:
        attention.add(layer, drawn(layer)[0], SCALE)
    scores = attention.scores()
    assert scores is not None
    assert scores.dtype == np.float32
    expected = sum(plainly(*drawn(layer), positions).numpy() for layer in attention.layers)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_layers_may_scale_and_share_keys_in_ways_of_their_own() -> None:
    positions = torch.arange(30, 35)
    attention, expected = QuestionAttention(positions, range(4), drawn_keys), np.zeros(TOKENS, np.float32)
    for layer, (shared, scale) in enumerate([(Q_HEADS, SCALE), (Q_HEADS, SCALE), (Q_HEADS, 0.5), (KV_HEADS, 0.5)]):
        queries, keys = drawn(layer)
        attention.add(layer, queries[:, :shared], scale)
        expected += plainly(queries[:, :shared] * (scale / SCALE), keys, positions).numpy()
    np.testing.assert_allclose(attention.scores(), expected, rtol=1e-5)


def test_no_more_keys_are_held_than_are_computed_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_attention, "MOST_NUMBERS", 1)
    steps: list[str] = []
    compute = QuestionAttention._peaks_at_once

    def noted(*arguments: Any) -> torch.Tensor:
        steps.append("computed")
        return compute(*arguments)

    def keys_at(layers: Iterable[int]) -> Iterator[torch.Tensor]:
        for layer in layers:
            steps.append("read")
            yield drawn(layer)[1]

    monkeypatch.setattr(QuestionAttention, "_peaks_at_once", noted)
    attention = QuestionAttention(torch.arange(30, 35), range(3), keys_at)
    for layer in attention.layers:
        attention.add(layer, drawn(layer)[0], SCALE)
    assert attention.scores() is not None
    assert steps == ["read", "computed"] * 3


def test_no_more_queries_are_kept_than_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sequence of a step may have a probe, and the engine's own layers run meanwhile."""
    of_a_layer = drawn(1)[0].nbytes
    monkeypatch.setattr(question_attention, "MOST_KEPT", 3 * of_a_layer)
    attention = QuestionAttention(torch.arange(30, 35), range(1, 9), drawn_keys)
    kept = []
    for layer in attention.layers:
        queries = drawn(layer)[0]
        kept.append(weakref.ref(queries))
        attention.add(layer, queries, SCALE)
        del queries
        assert sum(each() is not None for each in kept) < 3
    assert attention.scores() is not None


def test_layers_that_could_not_be_added_up_were_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys_at(layers: Iterable[int]) -> Iterator[torch.Tensor]:
        if 3 in layers:
            raise torch.OutOfMemoryError
        return drawn_keys(layers)

    monkeypatch.setattr(question_attention, "MOST_KEPT", 1)
    attention = QuestionAttention(torch.arange(30, 35), range(1, 6), keys_at)
    for layer in attention.layers:
        with nullcontext() if layer != 3 else pytest.raises(torch.OutOfMemoryError):
            attention.add(layer, drawn(layer)[0], SCALE)
    assert attention.scores() is None


def test_what_ranks_with_some_of_the_heads_see_adds_up() -> None:
    positions, (queries, keys) = torch.arange(30, 35), drawn(1)
    shared, told = Q_HEADS // KV_HEADS, []
    for rank in range(KV_HEADS):
        part = QuestionAttention(positions, range(1), lambda layers, rank=rank: [keys[:, rank : rank + 1]])
        part.add(0, queries[:, shared * rank : shared * (rank + 1)], SCALE)
        told.append(part.scores())
    whole = QuestionAttention(positions, range(1), lambda layers: [keys])
    whole.add(0, queries, SCALE)
    np.testing.assert_allclose(np.sum(told, axis=0), whole.scores(), rtol=1e-5)


def test_what_stands_behind_the_question_is_not_seen() -> None:
    attention = QuestionAttention(torch.arange(10, 15), range(1), drawn_keys)
    attention.add(0, drawn(3)[0], SCALE)
    scores = attention.scores()
    assert scores is not None
    assert scores[:15].min() > 0
    assert scores[15:].max() == 0


@pytest.mark.parametrize("seen", [(), (1,), (1, 1), (1, 2, 2), (2, 3)])
def test_unless_every_layer_was_seen_once_there_are_no_scores(seen: tuple[int, ...]) -> None:
    attention = QuestionAttention(torch.arange(30, 35), range(1, 3), drawn_keys)
    for layer in seen:
        attention.add(layer, drawn(layer)[0], SCALE)
    assert attention.scores() is None


def test_nor_are_there_where_a_key_is_no_number() -> None:
    queries, keys = drawn(3)
    keys[7] = torch.nan
    attention = QuestionAttention(torch.arange(30, 35), range(1), lambda layers: [keys])
    attention.add(0, queries, SCALE)
    assert attention.scores() is None
