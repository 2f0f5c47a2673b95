"""A worker sees in its engine's batch and pool where one request's question looks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from semblend_core.kv import PagedKv, QuestionAttention, Rotation, StoreOptions
from semblend_core.serving import ProbeOrder, StepWork, WorkerNews
from semblend_core.serving.worker import PagedMemory, WorkerSide
from semblend_core.serving.worker.looking import Look

SIZE, BLOCKS, LAYERS, Q_HEADS, KV_HEADS, DIM = 16, 24, 3, 4, 2, 8
BLOCK_IDS = [7, 3, 20, 11]
QUESTION = (50, 60)
CONFIG = {"model_type": "llama", "hidden_size": Q_HEADS * DIM, "num_attention_heads": Q_HEADS, "rope_theta": 1e4}


def slots_of(positions: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(BLOCK_IDS)[positions // SIZE] * SIZE + positions % SIZE)


@pytest.fixture
def pool() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(BLOCKS, 2, SIZE, KV_HEADS, DIM, generator=generator) for _ in range(LAYERS)]


@pytest.fixture
def look(pool: list[torch.Tensor]) -> Look:
    memory = PagedMemory(PagedKv.from_stacked(pool, 1), Rotation.from_config(CONFIG))
    return Look(ProbeOrder("r", BLOCK_IDS, QUESTION, range(1, 3)), memory)


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and slots: of others, of the question in two pieces that stand apart, and padding."""
    first, second = slots_of(np.arange(50, 54)), slots_of(np.arange(54, 60))
    slots = torch.cat([torch.tensor([80, 81]), second, torch.tensor([90]), first, torch.tensor([-1, -1])])
    return torch.randn(len(slots), Q_HEADS, DIM, generator=torch.Generator().manual_seed(6)), slots


def test_it_finds_the_question_in_the_batch_and_its_keys_in_the_pool(
    look: Look, pool: list[torch.Tensor], batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    queries, slots = batch
    keys = {layer: torch.cat([pool[layer][block, 0] for block in BLOCK_IDS])[: QUESTION[1]] for layer in look.layers}
    expected = QuestionAttention(torch.arange(*QUESTION), look.layers, lambda layers: (keys[n] for n in layers))
    for layer in look.layers:
        look.add(layer, queries, slots, 0.5)
        expected.add(layer, torch.cat([queries[9:13], queries[2:8]]), 0.5)
    scores, wanted = look.scores(), expected.scores()
    assert scores is not None
    assert wanted is not None
    np.testing.assert_array_equal(scores, wanted)


def test_fp8_is_seen_as_it_was_computed(pool: list[torch.Tensor], batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    fp8, (queries, slots) = torch.float8_e4m3fn, batch
    views = PagedKv.from_stacked([layer.to(fp8) for layer in pool], 1)
    scales = (1.0, 0.5, 2.0)
    memory = PagedMemory(views.with_scales(scales, scales), Rotation.from_config(CONFIG))
    seen = Look(ProbeOrder("r", BLOCK_IDS, QUESTION, range(1, 3)), memory)
    keys = {
        layer: torch.cat([views.keys[layer][block] for block in BLOCK_IDS]).float()[: QUESTION[1]] * scales[layer]
        for layer in seen.layers
    }
    expected = QuestionAttention(torch.arange(*QUESTION), seen.layers, lambda layers: (keys[n] for n in layers))
    for layer in seen.layers:
        seen.add(layer, queries.to(fp8), slots, 0.5)
        asking = queries.to(fp8).float()
        expected.add(layer, torch.cat([asking[9:13], asking[2:8]]), 0.5)
    scores, wanted = seen.scores(), expected.scores()
    assert scores is not None
    assert wanted is not None
    np.testing.assert_allclose(scores, wanted, rtol=1e-6)


def test_the_engine_may_use_the_memory_of_queries_again(
    look: Look, pool: list[torch.Tensor], batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    (queries, slots), other = batch, PagedMemory(PagedKv.from_stacked(pool, 1), Rotation.from_config(CONFIG))
    expected = Look(ProbeOrder("r", BLOCK_IDS, QUESTION, look.layers), other)
    shared = torch.empty_like(queries)
    for layer in look.layers:
        shared.copy_(queries * layer)
        look.add(layer, shared, slots, 0.5)
        expected.add(layer, queries * layer, slots, 0.5)
    np.testing.assert_array_equal(look.scores(), expected.scores())


def test_ranks_with_some_of_the_heads_tell_together_what_one_with_all_would(
    look: Look, pool: list[torch.Tensor], batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    queries, slots = batch
    news = WorkerNews()
    for rank in range(2):
        part = [layer[..., rank : rank + 1, :].contiguous() for layer in pool]
        memory = PagedMemory(PagedKv.from_stacked(part, 1), Rotation.from_config(CONFIG))
        own = Look(ProbeOrder("r", BLOCK_IDS, QUESTION, look.layers), memory)
        for layer in look.layers:
            own.add(layer, queries[:, 2 * rank : 2 * rank + 2], slots, 0.5)
        told = WorkerNews(scores={"r": own.scores()})
        news = told if rank == 0 else news.joined(told)
    for layer in look.layers:
        look.add(layer, queries, slots, 0.5)
    together, alone = news.scores["r"], look.scores()
    assert together is not None
    assert alone is not None
    assert (together.shape, together.dtype) == (alone.shape, alone.dtype)
    np.testing.assert_allclose(together, alone, rtol=1e-5)


def test_what_is_seen_is_told_though_the_step_has_not_ended(
    look: Look, pool: list[torch.Tensor], batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    rotation = Rotation.from_config(CONFIG)
    side = WorkerSide(StoreOptions(host_bytes=2**20), PagedMemory(PagedKv.from_stacked(pool, 1), rotation), rotation, 0)
    side.load(StepWork(probes=[ProbeOrder("r", BLOCK_IDS, QUESTION, look.layers)], computes=True))
    for layer in range(LAYERS):
        side.look(layer, *batch, 0.5)
    first = side.take_news()
    side.capture(StepWork())
    assert first is not None
    assert first.scores["r"] is not None
    assert "r" not in (side.take_news() or WorkerNews()).scores, "once"
    side.close()


def test_a_layer_that_was_not_seen_leaves_nothing_to_choose_by(
    look: Look, batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    assert look.scores() is None
    look.add(1, *batch, 0.5)
    assert look.scores() is None


def test_nor_does_a_pool_that_holds_no_numbers(
    look: Look, pool: list[torch.Tensor], batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    pool[1][3] = torch.nan
    for layer in look.layers:
        look.add(layer, *batch, 0.5)
    assert look.scores() is None
