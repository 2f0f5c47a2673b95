"""A fitted correction: what its maps do, in a sequence and in a pool, and which files are taken."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra `gpu`")
pytest.importorskip("safetensors", reason="needs the extra `gpu`")

import torch

from semblend_core import Span
from semblend_core.kv import (
    HeadShare,
    KvShape,
    LearnedShift,
    MeanShiftCorrection,
    PagedKv,
    PagedMeanShift,
    Rotation,
    SlotTable,
    find_learned_shift,
    middle_layer,
)
from semblend_core.kv.pieces import PLACES
from semblend_core.recompute import MeanShift

CPU = torch.device("cpu")
TOKENS, SPANS = 96, [Span(3, "a", 40, 40), Span(48, "b", 0, 30)]
ROWS = np.array([0, 4, 5, 9, 20, 33, 50, 51, 60, 77, 90])
SHAPE = KvShape(layers=3, kv_heads=2, key_dim=16, value_dim=8)
TURNING = Rotation.from_config({"model_type": "llama", "head_dim": 16})
FITTED = MeanShift(0.6, value_strength=0.4, reach=16, likeness=2)
ASKED = replace(FITTED, learned=True)


def fitted(maps: torch.Tensor | None = None) -> LearnedShift:
    """By default the maps that do what the strengths do."""
    if maps is None:
        strength = torch.cat([torch.full((16,), 0.6), torch.full((8,), 0.4)])
        maps = torch.cat([strength.diag(), torch.zeros(2 * SHAPE.width + PLACES, SHAPE.width)]).expand(SHAPE.maps)
    return LearnedShift(SHAPE, maps.clone(), FITTED)


class Pool:
    """Relocated KV in a pool, and what the rows become."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        slots = [[torch.randn(TOKENS, 2, dim) for _ in range(3)] for dim in (16, 8)]
        self.old = [[layer.clone() for layer in part] for part in slots]
        self.kv = PagedKv.from_slots(*slots, page_size=16)
        self.table = SlotTable(np.arange(TOKENS // 16), 16)
        self.fresh = [[layer.clone() for layer in part] for part in self.old]
        for part in self.fresh:
            for layer in part:
                layer[ROWS] += 0.3 * torch.randn(ROWS.size, *layer.shape[1:])

    def in_a_sequence(self, shift: MeanShift, learned: LearnedShift | None) -> list[torch.Tensor]:
        middle = self.old[0][middle_layer(3)], self.old[1][middle_layer(3)]
        correction = MeanShiftCorrection(shift, SPANS, ROWS, TURNING, middle, learned)
        keys, values = ([layer.clone() for layer in part] for part in self.fresh)
        for layer in range(3):
            correction.apply(layer, keys[layer], values[layer], self.old[0][layer][ROWS], self.old[1][layer][ROWS])
        return [*keys, *values]

    def in_the_pool(self, shift: MeanShift, learned: LearnedShift | None) -> list[torch.Tensor]:
        paged = PagedMeanShift(shift, SPANS, ROWS, self.kv, self.table, TURNING, learned)
        views = [*self.kv.keys, *self.kv.values]
        for view, layer in zip(views, [*self.fresh[0], *self.fresh[1]], strict=True):
            view.copy_(layer.view(view.shape))
        for layer in range(3):
            paged.apply(layer)
        return [view.reshape(TOKENS, *view.shape[2:]) for view in views]


def assert_same(some: list[torch.Tensor], others: list[torch.Tensor]) -> None:
    for one, other in zip(some, others, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-5)


def random_maps() -> torch.Tensor:
    return 0.1 * torch.randn(SHAPE.maps, generator=torch.Generator().manual_seed(4))


def test_maps_that_do_what_the_strengths_do_change_nothing() -> None:
    pool = Pool()
    assert_same(pool.in_a_sequence(ASKED, fitted()), pool.in_a_sequence(FITTED, None))


def test_a_pool_is_corrected_as_a_sequence_is() -> None:
    pool = Pool()
    learned = fitted(random_maps())
    sequence = pool.in_a_sequence(ASKED, learned)
    assert_same(pool.in_the_pool(ASKED, learned), sequence)
    assert not torch.equal(sequence[0], pool.in_a_sequence(FITTED, None)[0])


def test_who_does_not_ask_for_it_is_corrected_without() -> None:
    pool = Pool()
    assert_same(pool.in_a_sequence(FITTED, fitted(random_maps())), pool.in_a_sequence(FITTED, None))


def test_no_token_moves_much_further_than_rows_do() -> None:
    pool = Pool()
    wild = pool.in_a_sequence(ASKED, fitted(1000 * random_maps()))
    moved = torch.cat([wild[0] - pool.fresh[0][0], wild[3] - pool.fresh[1][0]], -1).flatten(1).norm(dim=1)
    rows = torch.cat([pool.fresh[part][0] - pool.old[part][0] for part in (0, 1)], -1)[ROWS].flatten(1).norm(dim=1)
    assert float(moved.max()) < 4 * float(rows.median())


def test_a_file_says_the_same_as_what_was_saved(tmp_path: Path) -> None:
    learned = fitted(random_maps())
    learned.save(tmp_path / "weights-1.safetensors", "weights-1", {"kl": 0.1})
    found = find_learned_shift(str(tmp_path), lambda: "weights-1", SHAPE, CPU)
    assert found is not None
    assert found.shift == FITTED
    torch.testing.assert_close(found.maps, learned.maps, rtol=1e-3, atol=1e-4)
    assert [file.name for file in tmp_path.iterdir()] == ["weights-1.safetensors"]


@pytest.mark.parametrize(("rank", "ranks", "heads"), [(0, 2, [0]), (1, 2, [1]), (1, 4, [0]), (2, 4, [1])])
def test_a_rank_takes_the_maps_of_its_heads(tmp_path: Path, rank: int, ranks: int, heads: list[int]) -> None:
    """Where there are fewer heads than ranks, neighbours have the same one."""
    learned = fitted(random_maps())
    learned.save(tmp_path / "w.safetensors", "w", {})
    own = replace(SHAPE, kv_heads=1)
    found = find_learned_shift(str(tmp_path), lambda: "w", own, CPU, HeadShare(rank, ranks))
    assert found is not None
    assert found.shape == own
    torch.testing.assert_close(found.maps, learned.maps[:, heads], rtol=1e-3, atol=1e-4)


def test_where_nothing_was_fitted_no_weights_are_read(tmp_path: Path) -> None:
    def unread() -> str:
        pytest.fail("the weights were read")

    assert find_learned_shift(str(tmp_path / "nowhere"), unread, SHAPE, CPU) is None
    assert find_learned_shift("none", unread, SHAPE, CPU) is None


@pytest.mark.parametrize("fault", ["other weights", "other shape", "cut short", "other format", "not finite"])
def test_a_file_that_does_not_fit_is_one_warning(tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "w.safetensors"
    maps = random_maps()
    if fault == "not finite":
        maps[0, 0, 0, 0] = torch.inf
    fitted(maps).save(file, "another" if fault == "other weights" else "w", {})
    shape = replace(SHAPE, kv_heads=1) if fault == "other shape" else SHAPE
    content = file.read_bytes()
    if fault == "cut short":
        file.write_bytes(content[: len(content) // 2])
    if fault == "other format":
        file.write_bytes(content.replace(b"semblend-correction-1", b"semblend-correction-9"))
    with caplog.at_level(logging.WARNING):
        assert find_learned_shift(str(tmp_path), lambda: "w", shape, CPU) is None
    assert len(caplog.records) == 1
    assert "is not used" in caplog.text
    assert find_learned_shift(str(tmp_path), lambda: "others", SHAPE, CPU) is None
