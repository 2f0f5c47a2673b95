"""Fitting a correction: its requests, its equations, and the command from weights to a file."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra `reference`")
pytest.importorskip("transformers", reason="needs the extra `reference`")

import torch

from semblend_core import identity_of_weights
from semblend_core.kv import KvShape
from semblend_core.recompute import MeanShift
from semblend_core.recompute.fit import __main__ as command
from semblend_core.recompute.fit import fitting
from semblend_core.recompute.fit.equations import Equations, choose_maps, plain_maps
from semblend_core.recompute.fit.requests import RequestMaker, Round, read_text
from semblend_core.reference import ReferenceEngine
from semblend_core.testing import shallow_model_folder

SHAPE = KvShape(layers=2, kv_heads=2, key_dim=4, value_dim=2)
SHIFT = MeanShift(0.6, value_strength=0.4, reach=16, likeness=2, learned=True)
CPU = torch.device("cpu")
TEXT = [np.random.default_rng(1).integers(0, 50_000, 9000).astype(np.int32)]
SMALL = ["--requests", "5", "--judged", "1", "--tokens", "288", "--continuation", "2"]


def some_rounds(seed: int = 0) -> list[Round]:
    return list(islice(RequestMaker(TEXT, 1000, seed).rounds(), 3))


def test_a_request_shares_passages_with_donors_token_by_token() -> None:
    for made in some_rounds():
        for request in made.requests:
            assert request.tokens.size <= 1000
            assert len(request.plan.spans) >= 2
            for span in request.plan.spans:
                here = request.tokens[span.target_start : span.target_end]
                assert np.array_equal(here, made.donors[span.donor_id][span.donor_start : span.donor_end])


def test_passages_come_in_another_order_or_from_several_donors() -> None:
    for made in some_rounds():
        for request in made.requests:
            starts = [span.donor_start for span in request.plan.spans]
            assert len(set(request.plan.donor_ids)) > 1 or starts != sorted(starts)


def test_the_same_seed_makes_the_same_requests() -> None:
    first, again, other = some_rounds(), some_rounds(), some_rounds(seed=1)
    assert np.array_equal(first[0].requests[0].tokens, again[0].requests[0].tokens)
    assert not np.array_equal(first[0].requests[0].tokens, other[0].requests[0].tokens)


def test_too_little_text_or_too_short_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="--text"):
        RequestMaker([np.arange(100, dtype=np.int32)], 1000)
    with pytest.raises(ValueError, match="at least"):
        RequestMaker(TEXT, 100)


def test_text_is_read_from_files_and_folders_or_is_pythons_manual(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.md").write_text("in a folder")
    (tmp_path / "in" / "picture.png").write_bytes(b"none")
    (tmp_path / "named.log").write_text("named")
    assert read_text([tmp_path / "in", tmp_path / "named.log"]) == ["in a folder", "named"]
    assert sum(map(len, read_text([]))) > 100_000


def samples(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, and a change that is a linear map of them."""
    drawing = torch.Generator().manual_seed(seed)
    maps = torch.randn(SHAPE.maps[1:], generator=torch.Generator().manual_seed(7))
    inputs = torch.randn(count, SHAPE.kv_heads, SHAPE.inputs, generator=drawing)
    return inputs, torch.einsum("nhf,hfw->nhw", inputs, maps)


def test_a_linear_change_is_learned_from_pieces_of_a_stream() -> None:
    learn, check = Equations(SHAPE, CPU), Equations(SHAPE, CPU)
    for piece in range(8):
        for layer in range(SHAPE.layers):
            learn.add(layer, *samples(40, piece))
            check.add(layer, *samples(40, 100 + piece))
    assert learn.samples == 320
    maps, told = choose_maps(learn, check, SHIFT)
    inputs, change = samples(50, 999)
    torch.testing.assert_close(torch.einsum("nhf,hfw->nhw", inputs, maps[1]), change, rtol=0.02, atol=0.02)
    assert all(layer["left"] < 0.01 < layer["left_plain"] for layer in told)


def test_where_nothing_can_be_learned_the_strengths_stay() -> None:
    learn, check = Equations(SHAPE, CPU), Equations(SHAPE, CPU)
    plain = plain_maps(SHAPE, SHIFT, CPU)
    for equations, seed in ((learn, 1), (check, 2)):
        inputs, _ = samples(60, seed)
        noise = torch.randn(60, SHAPE.kv_heads, SHAPE.width, generator=torch.Generator().manual_seed(seed))
        for layer in range(SHAPE.layers):
            equations.add(layer, inputs, torch.einsum("nhf,hfw->nhw", inputs, plain.float()) + noise)
    maps, told = choose_maps(learn, check, SHIFT)
    torch.testing.assert_close(maps, plain.float().expand_as(maps))
    assert [layer["ridge"] for layer in told] == [float("inf")] * SHAPE.layers


def test_the_plain_maps_are_the_strengths() -> None:
    plain = plain_maps(SHAPE, SHIFT, CPU)
    nearby = torch.ones(SHAPE.inputs, dtype=torch.float64)
    nearby[SHAPE.width :] = 9.0
    assert (nearby @ plain[0]).tolist() == [0.6] * 4 + [0.4] * 2


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """Some text and a fit of seconds."""
    text = tmp_path / "text.txt"
    text.write_text("\n".join(read_text([]))[:60_000])
    return [str(shallow_model_folder()), "--text", str(text), *SMALL]


def test_a_fit_that_pays_is_written_where_engines_find_it(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shallow_model_folder()
    monkeypatch.setattr(fitting, "NEARER", 100.0)
    monkeypatch.setenv("SEMBLEND_CORRECTIONS_DIR", str(tmp_path))
    assert command.main(small) == 0
    assert [file.stem for file in tmp_path.glob("*.safetensors")] == [identity_of_weights(model)]
    engine = ReferenceEngine.load(model)
    assert engine.learned is not None
    assert engine.learned.shape == engine.kv_shape


def test_a_fit_that_does_not_pay_is_not_written(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fitting, "NEARER", 0.0)
    file = tmp_path / "fit.safetensors"
    assert command.main([*small, "--out", str(file)]) == 1
    assert not file.exists()
    assert "nothing is written" in capsys.readouterr().err


def test_numbers_that_make_no_sense_are_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--requests", "0"])
    assert "--requests" in capsys.readouterr().err
