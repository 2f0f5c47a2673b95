"""What each policy chooses, and that no policy spends more than its budget, probes included."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend_core import Plan, RowKind, Span
from semblend_core.recompute import (
    Corrected,
    FullRecompute,
    KVDeviation,
    MeanShift,
    Oracle,
    Pooling,
    QueryAttention,
    Random,
    RecomputePolicy,
    RotateOnly,
    Scores,
    SeamAndTail,
    SeamHead,
    SharedSink,
)

_spec = importlib.util.spec_from_file_location("plans", Path(__file__).with_name("plans.py"))
assert _spec is not None
assert _spec.loader is not None
plans = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(plans)

LAYERS = 28  # Not a multiple of ten: shares of depth must be rounded.
PROJECTIONS = 0.16


class RankedProbe:
    """Scores that rise with the position, at the price a real probe has."""

    layers = LAYERS

    def __init__(self, plan: Plan) -> None:
        self._values = np.arange(plan.prompt_tokens, dtype=np.float64)
        self.asked: list[str] = []

    def cost(self, layers: int) -> float:
        return (layers - 1 + PROJECTIONS) / LAYERS

    def question_attention(self, layers: range, pooling: Pooling) -> Scores:
        self.asked.append(f"question_attention {layers.start} {layers.stop} {pooling}")
        return self._values

    def kv_deviation(self, layers: int) -> Scores:
        self.asked.append(f"kv_deviation {layers}")
        return self._values

    def true_deviation(self) -> Scores:
        self.asked.append("true_deviation")
        return self._values


POLICIES: list[Callable[[], RecomputePolicy]] = [
    RotateOnly,
    Random,
    Oracle,
    SeamHead,
    lambda: SeamHead(16),
    SeamAndTail,
    SharedSink,
    KVDeviation,
    QueryAttention,
    lambda: QueryAttention(seam=16),
    lambda: QueryAttention(seam=24, depth=(0.3, 0.95), pooling="peaks"),
    lambda: Corrected(QueryAttention(seam=16)),
    lambda: Corrected(SeamHead()),
]
PLANS = [plans.one_document, plans.edited_document, plans.composite]


def recomputed(plan: Plan) -> list[int]:
    return [at for row in plan.rows if row.kind is not RowKind.GAP for at in range(row.start, row.end)]


@pytest.mark.parametrize("make", POLICIES)
@pytest.mark.parametrize("shape", PLANS)
@settings(deadline=None)  # A busy machine is no fault of the code.
@given(budget=st.floats(0, 1), block=st.sampled_from([1, 16]))
def test_no_policy_spends_more_than_its_budget(
    make: Callable[[], RecomputePolicy], shape: Callable[[], Plan], budget: float, block: int
) -> None:
    plan = shape()
    decided = make().plan(plan, budget=budget, probe=RankedProbe(plan), block=block)
    assert decided.share <= budget + 1e-9
    assert decided.recomputed_tokens == plan.reused_tokens - decided.plan.reused_tokens
    assert decided.plan.spans == plan.spans
    gaps = {row for row in plan.rows if row.kind is RowKind.GAP}
    assert gaps <= set(decided.plan.rows)


@pytest.mark.parametrize("make", POLICIES[1:])
def test_the_same_plan_gets_the_same_rows(make: Callable[[], RecomputePolicy]) -> None:
    plan = plans.composite()
    first, second = (make().plan(plan, budget=0.2, probe=RankedProbe(plan)) for _ in range(2))
    assert first.plan == second.plan


def test_full_recompute_computes_everything_and_rotate_only_nothing() -> None:
    plan = plans.composite()
    assert FullRecompute().plan(plan, budget=1).plan.reused_tokens == 0
    assert RotateOnly().plan(plan, budget=1).plan == plan


def test_seams_are_the_first_tokens_of_each_span() -> None:
    decided = SeamHead(16).plan(plans.composite(passages=2), budget=0.5).plan
    assert recomputed(decided) == [*range(20, 36), *range(320, 336)]
    assert {row.kind for row in decided.rows} == {RowKind.GAP, RowKind.SEAM}


def test_a_small_budget_shortens_all_seams_alike() -> None:
    decided = SeamHead(16).plan(plans.composite(passages=2), budget=8 / 600).plan
    assert recomputed(decided) == [*range(20, 24), *range(320, 324)]


def test_without_a_number_seams_share_the_whole_budget_though_spans_adjoin() -> None:
    decided = SeamHead().plan(plans.composite(passages=4), budget=0.1)
    assert decided.share == pytest.approx(0.1)
    assert recomputed(decided.plan) == [at for start in (20, 320, 620, 920) for at in range(start, start + 30)]


def test_a_document_gets_a_long_seam_short_ones_behind_edits_and_its_tail() -> None:
    policy = SeamAndTail(seam=64, after_edit=8, tail=60)
    decided = policy.plan(plans.edited_document(), budget=0.5).plan
    # The tail reaches ten tokens into the last span, whose end is the prompt's last fifty tokens' start.
    assert recomputed(decided) == [*range(40, 104), *range(345, 353), *range(750, 758), *range(940, 950)]


def test_only_what_stood_at_its_donors_front_is_a_sink() -> None:
    plan = Plan.over("r", 400, 0, [Span(10, "a", 6, 100), Span(150, "b", 50, 100)])
    assert recomputed(SharedSink(16).plan(plan, budget=0.5).plan) == list(range(10, 20))


def test_the_best_scored_tokens_are_taken() -> None:
    plan = plans.one_document()
    decided = QueryAttention().plan(plan, budget=0.1, probe=RankedProbe(plan))
    rows = recomputed(decided.plan)
    assert rows == list(range(1040 - len(rows), 1040))
    # Twenty of twenty-eight layers reach 70% of depth; of the last one only the projections are computed.
    assert decided.probe_tokens == pytest.approx(70 * (19 + PROJECTIONS) / LAYERS)


def test_the_probe_is_asked_for_the_pooling_and_the_layers_of_the_policy() -> None:
    plan = plans.one_document()
    probe = RankedProbe(plan)
    QueryAttention(depth=(0.3, 0.95), pooling="peaks").plan(plan, budget=0.1, probe=probe)
    QueryAttention().plan(plan, budget=0.1, probe=probe)
    assert probe.asked == ["question_attention 8 27 peaks", "question_attention 14 20 mean"]


def test_an_engine_that_cannot_stop_at_a_layer_pays_for_all_of_them() -> None:
    plan = plans.one_document()
    probe = RankedProbe(plan)
    probe.cost = lambda layers: 1.0  # type: ignore[method-assign]
    decided = QueryAttention().plan(plan, budget=0.1, probe=probe)
    assert decided.probe_tokens == 70
    assert decided.recomputed_tokens == 30


def test_policies_that_choose_otherwise_have_names_of_their_own() -> None:
    weighed = MeanShift(reach=32.0)
    named = [
        QueryAttention(),
        QueryAttention(pooling="peaks"),
        QueryAttention(seam=16, pooling="peaks"),
        Corrected(SeamHead()),
        Corrected(SeamHead(), weighed),
    ]
    assert [policy.name for policy in named] == [
        "query_attention",
        "attention_peaks",
        "seam_head+attention_peaks",
        "seam_head+mean_shift",
        "seam_head+row_shift",
    ]


@pytest.mark.parametrize("make", POLICIES[1:])
def test_whole_blocks_are_taken_where_an_engine_asks_for_them(make: Callable[[], RecomputePolicy]) -> None:
    plan = plans.composite(exact=16, length=320, question=32)
    rows = recomputed(make().plan(plan, budget=0.2, probe=RankedProbe(plan), block=16).plan)
    assert all(set(range(at // 16 * 16, at // 16 * 16 + 16)) <= set(rows) for at in rows)
    if not isinstance(make(), SharedSink):
        assert rows


def test_comparing_the_first_layers_is_charged_and_not_computed_again() -> None:
    plan = plans.composite()
    decided = KVDeviation(layers=2).plan(plan, budget=0.15, probe=RankedProbe(plan))
    reused, done = plan.reused_tokens, (1 + PROJECTIONS) / LAYERS
    assert decided.share == pytest.approx(0.15, abs=1 / reused)
    # The first layers of everything, and the others of what is chosen.
    spent = reused * done + decided.recomputed_tokens * (1 - done)
    assert spent / reused == pytest.approx(decided.share)


@pytest.mark.parametrize("policy", [KVDeviation(), QueryAttention(), QueryAttention(seam=16)])
def test_a_probe_that_costs_more_than_the_budget_is_not_run(policy: RecomputePolicy) -> None:
    plan = plans.composite()
    probe = RankedProbe(plan)
    policy.plan(plan, budget=0.005, probe=probe)
    assert probe.asked == []


def test_short_spans_do_not_spend_everything_on_seams() -> None:
    plan = plans.composite(passages=8, length=70)
    decided = QueryAttention(seam=16).plan(plan, budget=0.15, probe=RankedProbe(plan)).plan
    kinds = {kind: sum(row.length for row in decided.rows if row.kind is kind) for kind in RowKind}
    assert kinds[RowKind.CHOSEN] >= kinds[RowKind.SEAM] > 0


def test_a_correction_travels_with_the_decision() -> None:
    plan = plans.composite()
    shift = MeanShift(strength=0.25)
    decided = Corrected(QueryAttention(seam=16), shift).plan(plan, budget=0.15, probe=RankedProbe(plan))
    assert decided.correction is shift
    plain = QueryAttention(seam=16).plan(plan, budget=0.15, probe=RankedProbe(plan))
    assert plain.correction is None
    assert decided.plan == plain.plan


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda plan: SeamHead().plan(plan, budget=1.5), "budget"),
        (lambda plan: SeamHead().plan(plan, budget=0.1, block=0), "block"),
        (lambda plan: QueryAttention().plan(plan, budget=0.1), "probe"),
        (lambda plan: SeamHead(0), "at least one"),
        (lambda plan: QueryAttention(depth=(0.7, 0.5)), "depth"),
        (lambda plan: KVDeviation(1), "layers"),
        (lambda plan: QueryAttention(pooling="median"), "pooling"),  # type: ignore[arg-type]
        (lambda plan: MeanShift(strength=0), "strength"),
        (lambda plan: MeanShift(value_strength=1.5), "strength"),
        (lambda plan: MeanShift(reach=0), "reach"),
        (lambda plan: MeanShift(likeness=-1), "likeness"),
        (lambda plan: SeamAndTail(seam=0), "seam"),
        (lambda plan: SharedSink(0), "sink"),
    ],
)
def test_wrong_numbers_are_refused_by_name(call: Callable[[Plan], Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        call(plans.composite())
