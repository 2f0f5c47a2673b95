"""Policies on the real model: what they measure, what it costs, and that recomputing brings reuse nearer to cold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra `reference`")
pytest.importorskip("transformers", reason="needs the extra `reference`")

import torch

from semblend_core import Plan, Span, TokenIds
from semblend_core.kv import DonorKv, QuestionAttention
from semblend_core.recompute import (
    Corrected,
    FullRecompute,
    KVDeviation,
    Oracle,
    QueryAttention,
    Recompute,
    RecomputePolicy,
    RotateOnly,
    SeamHead,
    choose_policy,
)
from semblend_core.reference import Prefill, prefill_reusing
from semblend_core.reference.attention import Observation
from semblend_core.reference.probing import EngineProbe

if TYPE_CHECKING:
    from semblend_core.reference import ReferenceEngine

Encode = Callable[..., TokenIds]
HEAD = "<|im_start|>user\n"
QUESTION = "\nQuestion: what does the northern pier ship, and when are the pears sold?\nAnswer:"
ORDER, REORDERED = ("harbour", "orchard", "telescope", "railway"), ("railway", "telescope", "orchard", "harbour")
CONTINUATION = 24


class Reordered:
    """Four passages in another order than their donor had them, with the cold truth beside."""

    def __init__(self, engine: ReferenceEngine, encode: Encode) -> None:
        self.engine = engine
        head = encode(HEAD)
        donor = np.concatenate([head, *(encode(name) for name in ORDER)])
        self.tokens = np.concatenate([head, *(encode(name) for name in REORDERED), encode(QUESTION)])
        starts = dict(zip(ORDER, np.cumsum([head.size, *(encode(name).size for name in ORDER)]), strict=False))
        at, spans = head.size, []
        for name in REORDERED:
            spans.append(Span(int(at), "donor", int(starts[name]), encode(name).size))
            at += encode(name).size
        self.plan = Plan.over("r", self.tokens.size, head.size, spans)
        self.donors = {"donor": engine.capture(engine.prefill(donor).workspace, donor.size)}
        self.cold = engine.prefill(self.tokens)
        self.continuation = np.array(engine.decode(self.cold, CONTINUATION, stop_ids=()), np.int32)
        self.truth = engine.score(self.cold, self.continuation).log_softmax(-1)

    def reuse(self, policy: RecomputePolicy, budget: float) -> tuple[Prefill, float]:
        """The prefill and the share that was recomputed."""
        done = prefill_reusing(
            self.engine,
            self.tokens,
            self.plan,
            self.donors,
            policy,
            budget,
            exact_prefix=self.cold.workspace,
            truth=(self.cold, self.continuation),
        )
        return done.prefill, done.recompute.share

    def divergence(self, policy: RecomputePolicy, budget: float) -> float:
        found = self.engine.score(self.reuse(policy, budget)[0], self.continuation).log_softmax(-1)
        return float((self.truth.exp() * (self.truth - found)).sum(-1).mean())


@pytest.fixture(scope="module")
def reordered(engine: ReferenceEngine, tokens_of: Encode) -> Reordered:
    return Reordered(engine, tokens_of)


def test_recomputing_everything_equals_cold(reordered: Reordered) -> None:
    prefill, share = reordered.reuse(FullRecompute(), 1.0)
    assert share == 1.0
    assert float((prefill.logits - reordered.cold.logits).abs().max()) <= 1e-3


def test_a_prompt_of_another_length_than_the_plan_is_refused(reordered: Reordered) -> None:
    with pytest.raises(ValueError, match="the plan is for"):
        prefill_reusing(reordered.engine, reordered.tokens[:-1], reordered.plan, reordered.donors, RotateOnly(), 0.0)


@pytest.mark.parametrize("policy", [SeamHead(16), QueryAttention(seam=16), KVDeviation(), Oracle()])
def test_a_policy_keeps_its_budget_on_a_real_model(reordered: Reordered, policy: RecomputePolicy) -> None:
    prefill, share = reordered.reuse(policy, 0.4)
    assert 0 < share <= 0.4
    assert prefill.computed_tokens + prefill.reused_tokens == reordered.tokens.size - prefill.exact_prefix_tokens


@pytest.mark.parametrize("policy", [QueryAttention(seam=16), Corrected(QueryAttention(seam=16)), Oracle()])
def test_recomputing_what_matters_brings_the_answer_nearer_to_cold(
    reordered: Reordered, policy: RecomputePolicy
) -> None:
    assert reordered.divergence(policy, 0.4) < 0.6 * reordered.divergence(RotateOnly(), 0.0)


def test_the_correction_helps_beyond_the_rows_it_comes_from(reordered: Reordered) -> None:
    plain = QueryAttention(seam=16)
    assert reordered.divergence(Corrected(plain), 0.4) < reordered.divergence(plain, 0.4)


def test_probing_leaves_the_workspace_as_it_was(reordered: Reordered) -> None:
    workspace = reordered.engine.place_plan(reordered.plan, reordered.donors, exact_prefix=reordered.cold.workspace)
    held = np.flatnonzero(workspace.filled)
    before = workspace.keys[:, held].clone(), workspace.values[:, held].clone()
    probe = EngineProbe(reordered.engine, workspace, reordered.tokens, reordered.plan)
    scores = probe.question_attention(range(15, 21), "mean")
    assert torch.equal(workspace.keys[:, held], before[0])
    assert torch.equal(workspace.values[:, held], before[1])
    assert np.array_equal(np.flatnonzero(workspace.filled), held)
    assert scores.shape == (reordered.tokens.size,)


def test_a_probe_costs_its_layers_and_of_the_last_only_the_projections(reordered: Reordered) -> None:
    workspace = reordered.engine.workspace(8)
    probe = EngineProbe(reordered.engine, workspace, reordered.tokens, reordered.plan)
    # SmolLM2's layer: Q and O 576 x 576, K and V 576 x 192, three matrices of 576 x 1536.
    projections = (576 * 576 + 2 * 576 * 192) / (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536)
    assert probe.cost(21) == pytest.approx((20 + projections) / 30, rel=1e-3)


def test_question_attention_is_a_share_of_the_whole(reordered: Reordered) -> None:
    workspace = reordered.engine.place_plan(reordered.plan, reordered.donors, exact_prefix=reordered.cold.workspace)
    probe = EngineProbe(reordered.engine, workspace, reordered.tokens, reordered.plan)
    scores = probe.question_attention(range(15, 21), "mean")
    # Six layers, each of which hands out one unit of attention per row and head.
    assert scores.sum() == pytest.approx(6, rel=1e-4)
    assert (scores >= 0).all()


def test_attention_peaks_are_the_most_that_each_head_pays_from_any_word(reordered: Reordered) -> None:
    workspace = reordered.engine.place_plan(reordered.plan, reordered.donors, exact_prefix=reordered.cold.workspace)
    probe = EngineProbe(reordered.engine, workspace, reordered.tokens, reordered.plan)
    mean, peaks = (probe.question_attention(range(15, 21), pooling) for pooling in ("mean", "peaks"))
    heads = 9
    assert (peaks >= heads * mean - 1e-6).all()
    assert peaks.max() <= 6 * heads + 1e-3


def test_it_scores_as_engines_do(reordered: Reordered) -> None:
    workspace = reordered.engine.place_plan(reordered.plan, reordered.donors, exact_prefix=reordered.cold.workspace)
    last = reordered.plan.rows[-1]
    keys: dict[int, torch.Tensor] = {}
    attention = QuestionAttention(
        torch.arange(last.start, last.end), range(15, 21), lambda layers: (keys[layer] for layer in layers)
    )

    def look(seen: Observation) -> None:
        keys[seen.layer] = seen.keys.transpose(0, 1)
        attention.add(seen.layer, seen.queries.transpose(0, 1)[-last.length :], seen.scaling)

    probe = EngineProbe(reordered.engine, workspace, reordered.tokens, reordered.plan)
    ours = probe.question_attention(attention.layers, "peaks")
    rows = np.concatenate([np.arange(row.start, row.end) for row in reordered.plan.rows])
    reordered.engine.compute(
        workspace, reordered.tokens[rows], rows, logits="none", observer=look, observed_layers=attention.layers
    )
    theirs = attention.scores()
    assert theirs is not None
    np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-6)


def test_a_probe_in_whole_steps_leaves_fewer_tokens_to_choose(reordered: Reordered) -> None:
    def decided(whole_steps: bool) -> Recompute:
        return prefill_reusing(
            reordered.engine,
            reordered.tokens,
            reordered.plan,
            reordered.donors,
            QueryAttention(seam=16),
            0.4,
            exact_prefix=reordered.cold.workspace,
            whole_steps=whole_steps,
        ).recompute

    gaps = sum(row.length for row in reordered.plan.rows)
    early, whole = decided(False), decided(True)
    assert early.probe_tokens < whole.probe_tokens == gaps
    assert early.recomputed_tokens > whole.recomputed_tokens


def test_the_oracle_says_what_it_lacks(reordered: Reordered) -> None:
    workspace = reordered.engine.place_plan(reordered.plan, reordered.donors, exact_prefix=reordered.cold.workspace)
    probe = EngineProbe(reordered.engine, workspace, reordered.tokens, reordered.plan)
    with pytest.raises(ValueError, match="truth="):
        probe.true_deviation()


def test_the_balanced_tier_serves_a_new_instruction_in_one_forward(engine: ReferenceEngine, tokens_of: Encode) -> None:
    document = tokens_of(*ORDER)
    old, new = tokens_of("Answer briefly.\n"), tokens_of("You are a careful clerk. Read this, then answer.\n")
    donor = np.concatenate([old, document])
    recipient = np.concatenate([new, document, tokens_of(QUESTION)])
    plan = Plan.over("r", recipient.size, 0, [Span(new.size, "donor", old.size, document.size)])
    kept: dict[str, DonorKv] = {"donor": engine.capture(engine.prefill(donor).workspace, donor.size)}
    choice = choose_policy("balanced", plan)
    assert choice is not None
    cold = engine.prefill(recipient)
    continuation = engine.decode(cold, CONTINUATION, stop_ids=())
    truth = engine.score(cold, continuation).log_softmax(-1)

    def divergence(prefill: Prefill) -> float:
        found = engine.score(prefill, continuation).log_softmax(-1)
        return float((truth.exp() * (truth - found)).sum(-1).mean())

    done = prefill_reusing(engine, recipient, plan, kept, choice.policy, choice.budget)
    assert 0 < done.recompute.share <= choice.budget
    assert done.recompute.probe_tokens == 0
    rotated = prefill_reusing(engine, recipient, plan, kept, RotateOnly(), 0.0)
    assert divergence(done.prefill) < divergence(rotated.prefill)
