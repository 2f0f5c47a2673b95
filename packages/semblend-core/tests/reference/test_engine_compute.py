"""One forward over any rows: observing, probing, and refusing what would be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra `reference`")
pytest.importorskip("transformers", reason="needs the extra `reference`")

import torch

from semblend_core import Plan, Span, TokenIds
from semblend_core.kv.donor_kv import InvalidKvError
from semblend_core.reference import Observation
from semblend_core.reference.engine import row_positions

if TYPE_CHECKING:
    from semblend_core.reference import ReferenceEngine

Encode = Callable[..., TokenIds]


def test_rows_in_several_forwards_equal_one(engine: ReferenceEngine, tokens_of: Encode) -> None:
    tokens = tokens_of("harbour", "orchard", "railway", "telescope", "harbour", "orchard", "railway")
    assert tokens.size > 300, "more rows than attention takes at once, so that blocks of rows are covered"
    workspace = engine.workspace(tokens.size)
    engine.compute(workspace, tokens[:17], range(17), logits="none")
    rest = engine.compute(workspace, tokens[17:], range(17, tokens.size), logits="all")
    with torch.no_grad():
        whole = engine.model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0]
    assert float((rest - whole[17:]).abs().max()) <= 1e-3


def test_scattered_rows_over_exact_kv_come_out_as_they_were(engine: ReferenceEngine, tokens_of: Encode) -> None:
    tokens = tokens_of("harbour", "orchard")
    cold = engine.prefill(tokens)
    before = engine.capture(cold.workspace, tokens.size)
    rows = np.flatnonzero(np.random.default_rng(7).random(tokens.size) < 0.2)
    logits = engine.compute(cold.workspace, tokens[rows], rows, logits="all")
    assert logits.shape == (rows.size, engine.vocabulary)
    after = engine.capture(cold.workspace, tokens.size)
    assert float((after.keys - before.keys).norm() / before.keys.norm()) <= 1e-5
    assert float((after.values - before.values).norm() / before.values.norm()) <= 1e-5


def test_an_observer_sees_what_attention_sees(engine: ReferenceEngine, tokens_of: Encode) -> None:
    tokens = tokens_of("orchard")
    cold = engine.prefill(tokens)
    rows = [3, 10, 11, tokens.size - 1]
    seen: list[int] = []

    def look(observation: Observation) -> None:
        seen.append(observation.layer)
        geometry = engine.geometry
        assert observation.positions.tolist() == rows
        assert observation.queries.shape == (engine.config.num_attention_heads, len(rows), geometry.key_dim)
        assert observation.keys.shape == (geometry.kv_heads, tokens.size, geometry.key_dim)
        assert observation.scaling == geometry.key_dim**-0.5
        for fresh, replaced in (
            (observation.fresh_keys, observation.replaced_keys),
            (observation.fresh_values, observation.replaced_values),
        ):
            assert fresh.shape == replaced.shape
            assert float((fresh - replaced).norm() / replaced.norm()) <= 1e-5

    engine.compute(cold.workspace, tokens[rows], rows, observer=look, observed_layers=(0, 7, 29))
    assert seen == [0, 7, 29]


def test_a_probe_stops_after_its_layer(engine: ReferenceEngine, tokens_of: Encode) -> None:
    tokens = tokens_of("telescope")
    half = tokens.size // 2
    workspace = engine.prefill(tokens[:half]).workspace
    seen: list[int] = []
    answer = engine.compute(
        workspace,
        tokens[half:],
        range(half, tokens.size),
        observer=lambda observation: seen.append(observation.layer),
        stop_after_layer=4,
    )
    assert answer is None
    assert seen == [0, 1, 2, 3, 4]
    assert workspace.length == half, "layers behind the probe hold nothing of its rows"
    logits = engine.compute(workspace, tokens[half:], range(half, tokens.size))
    assert float((logits - engine.prefill(tokens).logits).abs().max()) <= 1e-3


def test_a_forward_that_is_not_kept_leaves_no_trace(engine: ReferenceEngine, tokens_of: Encode) -> None:
    tokens = tokens_of("harbour")
    workspace = engine.prefill(tokens).workspace
    before = engine.capture(workspace, tokens.size)
    others = tokens_of("railway")[: tokens.size - 5]
    for stop in (None, 2):
        engine.compute(workspace, others, range(others.size), keep=False, stop_after_layer=stop)
        after = engine.capture(workspace, tokens.size)
        assert torch.equal(after.keys, before.keys)
        assert torch.equal(after.values, before.values)


def test_an_observers_error_comes_through_and_the_engine_goes_on(engine: ReferenceEngine, tokens_of: Encode) -> None:
    tokens = tokens_of("orchard")

    def fail(observation: Observation) -> None:
        raise RuntimeError("observer broke")

    with pytest.raises(RuntimeError, match="observer broke"):
        engine.compute(engine.workspace(8), tokens[:8], range(8), observer=fail)
    assert engine.prefill(tokens[:8]).logits.isfinite().all()


def test_what_no_forward_could_compute_correctly_is_refused(engine: ReferenceEngine, tokens_of: Encode) -> None:
    tokens = tokens_of("orchard")
    workspace = engine.workspace(16)
    with pytest.raises(ValueError, match="position 0 holds no KV"):
        engine.compute(workspace, tokens[4:6], [4, 5])
    with pytest.raises(ValueError, match="ascend"):
        engine.compute(workspace, tokens[:2], [1, 0])
    with pytest.raises(ValueError, match="one token per position"):
        engine.compute(workspace, tokens[:3], [0, 1])
    with pytest.raises(ValueError, match="beyond the workspace"):
        engine.compute(workspace, tokens[:17], range(17))
    with pytest.raises(ValueError, match=f"max_tokens={engine.max_tokens}"):
        engine.workspace(engine.max_tokens + 1)


def test_a_plan_that_its_donors_cannot_serve_is_refused(engine: ReferenceEngine, tokens_of: Encode) -> None:
    tokens = tokens_of("orchard")
    donor = engine.capture(engine.prefill(tokens[:12]).workspace, 12)
    plan = Plan.over("r", 32, 4, [Span(8, "donor", 0, 13)])
    with pytest.raises(InvalidKvError, match="pass exact_prefix"):
        engine.place_plan(plan, {"donor": donor})
    with pytest.raises(InvalidKvError, match="holds positions 0 to 12"):
        engine.place_plan(plan, {"donor": donor}, exact_prefix=donor)
    with pytest.raises(InvalidKvError, match="'donor', which is not among"):
        engine.place_plan(plan, {}, exact_prefix=donor)
    with pytest.raises(ValueError, match="the plan is for 32 tokens"):
        engine.sparse_prefill(tokens[:31], plan, {"donor": donor}, exact_prefix=donor)
    assert row_positions(plan).tolist() == [4, 5, 6, 7, *range(21, 32)]
